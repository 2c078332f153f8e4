"""Wheel and source distribution: built twice from two places, byte for byte the same."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "src", "tests", "docs", "examples", "recipes", "tools", "hatch_build.py", "pyproject.toml",
    "requirements.lock", "README.md", "SECURITY.md", "LICENSE", "NOTICE", "CHANGELOG.md",
)  # fmt: skip


def copy(source, target):
    """Copy the parts of a source distribution, without permissions."""
    target.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source / part, target / part, ignore=unwanted, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source / part, target / part)


def build(sources, folder, umask):
    """Build a copy of the sources with other times and permissions; digests by name, and the files."""
    copy(sources, folder)
    at = time.time() - 1000 * umask
    for path in folder.rglob("*"):
        os.utime(path, (at, at))
        path.chmod(0o777 & ~umask if path.is_dir() else 0o666 & ~umask)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = sorted((folder / "dist").iterdir())
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in made}, made


@pytest.mark.long
def test_two_builds_have_the_same_digests(tmp_path):
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    sys.path.insert(0, str(ROOT / "tools"))
    import sbom

    copy(ROOT, tmp_path / "sources")  # once: somebody may be editing
    first, files = build(tmp_path / "sources", tmp_path / "one", 0o022)
    second, _ = build(tmp_path / "sources", tmp_path / "another place", 0o077)
    assert first == second
    assert [name.rsplit(".", 1)[1] for name in first] == ["whl", "gz"]
    with zipfile.ZipFile(files[0]) as wheel:
        (name,) = [n for n in wheel.namelist() if "/sboms/" in n]
        assert name.endswith(f".dist-info/sboms/{sbom.NAME}")
        assert wheel.read(name).decode() == sbom.render(tmp_path / "sources")
        assert not [n for n in wheel.namelist() if str(tmp_path).encode() in wheel.read(n)]
