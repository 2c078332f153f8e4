"""Result pages are listed with what they depend on, carry stamps, and docs/ cites none of another model."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

if not (ROOT / "research").is_dir():
    pytest.skip("a source distribution has no research folder", allow_module_level=True)

sys.path.insert(0, str(ROOT / "research"))
import evidence  # noqa: E402

sys.path.pop(0)

RESULTS = sorted(p.stem for p in (ROOT / "research" / "results").glob("*.md"))
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "decisions")
CITED = re.compile(r"research/results/(\w+)\.md")


def test_every_result_page_is_listed_and_its_scripts_exist():
    pages = evidence.read_pages()
    assert sorted(pages) == RESULTS
    for page in pages.values():
        assert all(path.exists() for path in (*page.model, *page.code)), page.name


def test_every_result_page_has_a_stamp():
    lacking = [p.name for p in evidence.read_pages().values() if not _stamp(p)]
    assert lacking == []


def _stamp(page):
    return evidence.read_stamp(page.path(ROOT).read_text("utf-8"))


@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_documentation_cites_no_page_of_another_model(path):
    pages = evidence.read_pages()
    cited = set(CITED.findall(path.read_text("utf-8")))
    assert sorted(n for n in cited if _stamp(pages[n])["model"] != evidence.digest_model(pages[n])) == []


# ---- keys and runs, on a small project ---------------------------------------------------------------------

TABLE = """
[parts]
atlas = ["atlas.npz"]
shapes = ["shape.npz"]
[groups]
both = ["model", "io"]
[pages.long]
commands = ["python research/write.py long"]
model = ["atlas"]
code = ["both"]
data = ["heads"]
minutes = 60
[pages.short]
commands = ["python research/write.py short"]
model = ["shapes"]
code = ["io"]
minutes = 1
[pages.broken]
commands = ["python research/write.py broken", "python research/fail.py"]
minutes = 2
[pages.hand]
minutes = 1
"""


@pytest.fixture
def project(tmp_path):
    for folder in (*evidence.ALWAYS, "model", "io", "data"):
        (tmp_path / "src" / "tumoar" / folder).mkdir(parents=True)
    for name in ("atlas", "shape"):
        (tmp_path / "src/tumoar/data" / f"{name}.npz").write_text(name)
    for file in ("model/gmm.py", "io/nifti.py", "vocabulary/labels.py"):
        (tmp_path / "src/tumoar" / file).write_text("x = 1")
    (tmp_path / "research" / "results").mkdir(parents=True)
    (tmp_path / "research" / "evidence.toml").write_text(TABLE)
    (tmp_path / "research" / "write.py").write_text(
        "import sys, pathlib\n"
        "pathlib.Path('research/results', sys.argv[1] + '.md').write_text('# made')\n"
        "open('log', 'a').write(sys.argv[1] + ' ')\n"
    )
    (tmp_path / "research" / "fail.py").write_text("raise SystemExit(1)")
    (tmp_path / "data" / "heads").mkdir(parents=True)
    (tmp_path / "data" / "heads" / "one.nii.gz").write_text("head")
    return tmp_path


def _changes(project):
    pages = evidence.read_pages(project)
    return {n: evidence.find_changes(p, project, project / "data") for n, p in pages.items()}


def _run(project, *names, minutes=1e9):
    return evidence.run(names, minutes, project, project / "data")


def test_a_run_makes_what_is_not_current_and_nothing_else(project):
    assert set(_changes(project).values()) == {"never run"}
    assert _run(project) == ["short", "long"]  # shortest first; `broken` failed
    assert {n for n, c in _changes(project).items() if c == "current"} == {"long", "short"}
    (project / "log").unlink()
    assert _run(project, "long", "short") == []
    assert not (project / "log").exists()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/tumoar/data/atlas.npz", {"long": "model", "short": "current"}),
        ("src/tumoar/data/shape.npz", {"long": "current", "short": "model"}),
        ("src/tumoar/model/gmm.py", {"long": "code", "short": "current"}),
        ("src/tumoar/io/nifti.py", {"long": "code", "short": "code"}),
        ("src/tumoar/vocabulary/labels.py", {"long": "code", "short": "code"}),
        ("research/write.py", {"long": "code", "short": "code"}),
        ("data/heads/one.nii.gz", {"long": "data", "short": "current"}),
    ],
)
def test_a_page_depends_on_what_is_listed(project, changed, expected):
    _run(project, "long", "short")
    (project / changed).write_text("something else")
    found = _changes(project)
    assert {name: found[name] for name in expected} == expected


def test_absent_data_change_nothing(project):
    _run(project, "long")
    shutil.rmtree(project / "data")
    assert _changes(project)["long"] == "current"


def test_nothing_is_begun_that_takes_longer_than_is_left(project):
    assert _run(project, "long", "short", minutes=30) == ["short"]


def test_a_stamp_replaces_the_one_before(project):
    page = project / "research" / "results" / "hand.md"
    page.write_text("# by hand\n")
    for model in ("a", "b"):
        evidence.write_stamp(page, {"model": model})
    assert page.read_text().count("evidence") == 1
    assert evidence.read_stamp(page.read_text()) == {"model": "b"}
