"""The recipes and the page on cohorts: every command in them is one that there is."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tumoar.cli import app

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "recipes").iterdir()), ROOT / "docs" / "cohorts.md"]
KNOWN = {flag for p in get_command(app).commands["cohort"].params for flag in p.opts}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_flags_exist(path):
    text = path.read_text(encoding="utf-8")
    commands = re.findall(r"tumoar,? cohort[^\n]*", text)
    assert commands or path.name in ("Dockerfile", "tumoar.def", "tls.sh")
    for command in commands:
        ours = re.split(r" -- | \|\| |\s#", command)[0]
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ours))
        assert flags <= KNOWN, command


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".sh"], ids=lambda p: p.name)
def test_scripts_are_shell(path):
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_nothing_is_open_to_strangers(path):
    """Schedulers and workers speak TLS; no cache lies where others could make it first."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(r",\s*\n\s*--", ", --", text)
    assert "0.0.0.0" not in text
    assert not re.search(r"NUMBA_CACHE_DIR[=:]\S*/tmp", text)
    assert "--insecure-scheduler" not in text or path.suffix == ".md"
    for command in re.findall(r"^(?!#).*\bdask,? (?:scheduler|worker)\b.*$", text, re.MULTILINE):
        if path.suffix != ".md":
            assert "--tls-ca-file" in command or "--protocol tls" in command, command
            assert "--no-dashboard" in command
    for address in re.findall(r"--scheduler,? \"?(\S+)", text):
        assert not address.startswith("tcp://"), address


def test_certificates_are_closed_to_others(tmp_path):
    os.umask(os.umask(0o022))
    subprocess.run(
        ["bash", str(ROOT / "recipes" / "tls.sh"), str(tmp_path / "tls")], check=True, capture_output=True
    )
    assert sorted(p.name for p in (tmp_path / "tls").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    for path in (tmp_path / "tls", *(tmp_path / "tls").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


@pytest.mark.slow
def test_the_recipe_for_slurm_runs_over_tls_and_leaves_nothing(tmp_path):
    """Scheduler, worker and client on one machine; the one subject has no image, so it fails at once."""
    (tmp_path / "raw" / "sub-01").mkdir(parents=True)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in (
        ("srun", '"$@"'),
        ("dask", f'{sys.executable} -m dask "$@"'),
        ("tumoar", f'{sys.executable} -m tumoar "$@"'),
        ("python", f'{sys.executable} "$@"'),
    ):
        (commands / name).write_text(f"#!/bin/bash\nexec {words}\n")
        (commands / name).chmod(0o755)
    source = str(Path(sys.modules["tumoar"].__file__).parents[1])
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path),
        "PYTHONPATH": source,
    }  # fmt: skip
    with open(tmp_path / "log.txt", "w+") as log:  # not a pipe: what is left running would hold it open
        done = subprocess.run(
            ["bash", str(ROOT / "recipes" / "slurm_dask.sh"), "raw", "out", "lo"],
            cwd=tmp_path, env=environment | {"TLS_RECIPE": str(ROOT / "recipes" / "tls.sh")},
            stdout=log, stderr=log, timeout=120,
        )  # fmt: skip
        log.seek(0)
        said = log.read()
    assert done.returncode == 8, said
    assert "on the scheduler tls://127.0.0.1:" in said
    assert "sub-01 FAILED" in said
    assert not list(tmp_path.glob(".tumoar-run-*"))
