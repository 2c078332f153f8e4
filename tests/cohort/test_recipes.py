"""The recipes and the page on cohorts: every command in them is one that there is."""

import re
import subprocess
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
    assert commands or path.name in ("Dockerfile", "tumoar.def")
    for command in commands:
        ours = re.split(r" -- | \|\| |\s#", command)[0]
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ours))
        assert flags <= KNOWN, command


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".sh"], ids=lambda p: p.name)
def test_scripts_are_shell(path):
    subprocess.run(["bash", "-n", str(path)], check=True)
