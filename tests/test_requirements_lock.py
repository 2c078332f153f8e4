"""The lock file: every requirement pinned by hash, none from a named index, none below its floor."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def entries():
    """Requirements of the lock, each with its hashes."""
    lines = "\n".join(line for line in LOCK.splitlines() if not line.startswith("#"))
    for entry in lines.replace("\\\n", " ").splitlines():
        words, *hashes = re.split(r"\s+--hash=", entry.strip())
        yield Requirement(words), hashes


PINNED = list(entries())


def test_every_entry_is_one_version_with_hashes():
    assert len(PINNED) > 30
    for requirement, hashes in PINNED:
        assert re.fullmatch(r"==[0-9][\w.]*", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", h) for h in hashes), requirement


def test_nothing_is_said_of_where_it_was_made():
    assert "://" not in LOCK
    assert not re.search(r"--(index|extra-index|find-links|trusted-host)", LOCK)
    assert not re.search(r"(^|\s)/\w", LOCK)


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cluster"]])
def test_floors_are_kept(text):
    wanted = Requirement(text)
    found = [r for r, _ in PINNED if canonicalize_name(r.name) == canonicalize_name(wanted.name)]
    assert found, f"{wanted.name} is not in the lock"
    for requirement in found:
        (pin,) = requirement.specifier
        assert wanted.specifier.contains(pin.version, prereleases=True)


def test_nothing_in_the_lock_is_for_tests_alone():
    names = {canonicalize_name(r.name) for r, _ in PINNED}
    assert not names & {"pytest", "hypothesis", "ruff", "mypy", "playwright"}
