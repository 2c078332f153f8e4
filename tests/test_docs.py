"""Documentation: links and paths exist, the navigation is complete, numbers equal those of the package."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from PIL import Image

from tumoar.io.models import SHIPPED, default_model
from tumoar.model.generative import FULL
from tumoar.model.theta_prior import WIDTH, build_mean_constraints
from tumoar.train.atlas import AtlasSettings
from tumoar.version import __version__
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import default_contrasts
from tumoar.vocabulary.labels import default_labels

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("docs", "research", "benchmarks", "tests", "src", "examples", "recipes")

if not (ROOT / "research").is_dir() or not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("a source distribution has no research folder", allow_module_level=True)

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "research").rglob("*.md")])
FORM = ["Context", "Decision", "Evidence", "Consequences"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def _prose(path: Path) -> str:
    """The page without fenced code."""
    return re.sub(r"^(```|~~~).*?^\1", "", path.read_text("utf-8"), flags=re.M | re.S)


def _anchors(path: Path) -> set[str]:
    """Anchors of headings, as mkdocs and GitHub make them of words."""
    headings = re.findall(r"^#+ +(.+)$", _prose(path), re.M)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h.lower()).strip()) for h in headings}


def _broken(path: Path, text: str) -> list[str]:
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        outside = path.is_relative_to(DOCS) and not found.is_relative_to(DOCS)
        if not found.exists() or outside or (anchor and anchor not in _anchors(found)):
            broken.append(target)
    return broken


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_every_link_leads_to_a_file_and_a_heading(path):
    """Pages of docs/ link within docs/ only, since the site contains nothing else."""
    assert _broken(path, _prose(path)) == []


def test_a_broken_link_is_found():
    page = DOCS / "index.md"
    text = "[a](nowhere.md) [b](maths.md#nowhere) [c](../README.md) [d](maths.md#misprints-in-the-paper)"
    assert _broken(page, text) == ["nowhere.md", "maths.md#nowhere", "../README.md"]


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_every_path_in_code_font_exists(path):
    """This is how docs/ refers to the rest of the repository; NAME and NNNN stand for any."""
    named = re.findall(rf"`(?:python )?((?:{'|'.join(FOLDERS)})/[\w./-]*)[` ]", _prose(path))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert [name for name in missing if not re.search("NAME|NNNN", name)] == []


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    version, date = (
        re.search(rf"^{name}: (\S+)$", citation, re.M)[1] for name in ("version", "date-released")
    )
    assert version == __version__
    assert f"\n## {version} - {date}\n" in changes


def test_the_navigation_lists_every_page_once():
    listed = re.findall(r":\s+(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_script_and_page_of_research_is_in_its_index():
    research = ROOT / "research"
    index = (research / "README.md").read_text("utf-8")
    linked = {(research / target).resolve() for target in LINK.findall(index)}
    pages = [*research.glob("*.py"), *research.glob("results/*.md"), *research.glob("notes/*.md")]
    assert sorted(_name(page) for page in pages if page not in linked) == []


def test_every_decision_is_one_page_in_the_same_form():
    decisions = sorted((DOCS / "decisions").glob("0*.md"))
    index = (DOCS / "decisions" / "index.md").read_text("utf-8")
    assert len(decisions) > 10
    for page in decisions:
        text = page.read_text("utf-8")
        assert re.findall(r"^## (.+)$", text, re.M) == FORM, page
        assert len(text.splitlines()) <= 60, page
        title = re.match(r"# \d{4} (.+)\n", text)[1]
        assert f"[{page.name[:4]}]({page.name}) | {title} |" in index


@pytest.fixture(scope="module")
def maths():
    return (DOCS / "maths.md").read_text("utf-8")


def test_the_sizes_in_maths_are_those_of_the_label_table(maths):
    labels = default_labels()
    assert re.findall(r"\bK = (\d+)", maths) == [str(labels.K)]
    assert re.findall(r"\bX = (\d+)", maths) == [str(labels.X)]
    assert set(re.findall(r"\bQ = (\d+)", maths)) == {str(labels.Q)}
    own, paper = re.findall(r"(\d+)\s+states \(l, z, y\)", maths), re.findall(r"and (\d+) states;", maths)
    assert (own, paper) == ([str(len(labels.states))], ["31"])
    assert re.findall(r"\| (\d+) states \|", maths) == own
    assert re.findall(r"(\d+) of them in the brain", maths) == [str(labels.in_brain.sum())]


def test_the_constraints_in_maths_are_those_of_the_contrasts(maths):
    contrasts = [default_contrasts()[name] for name in ("T1", "T1c", "T2", "FLAIR", "CT", "other")]
    rows = len(build_mean_constraints(default_labels(), contrasts)[1])
    assert re.findall(r"(\d+) rows of Table 3 and (\d+) more", maths) == [("12", str(rows - 12))]


def test_the_settings_in_maths_are_the_defaults(maths):
    config = Config()
    assert f"| {config.gem.w}, {config.gem.u} |" in maths
    assert f"{config.gibbs.burn_in} + {config.gibbs.samples} sweeps" in maths
    assert f"a gain of {config.gem.tolerance:.0e}".replace("e-0", "e-") in maths
    assert f"lowered by {-config.level_y} nats" in maths
    strengths = f"a strength of {config.soft_z.strength} (tumor) and {config.soft_y.strength} (core)"
    assert strengths in re.sub(r"\s+", " ", maths)
    assert (config.gibbs.full_every, config.gibbs.rest_every) == (10, 10), "maths.md says ten in words"
    assert f"below {config.least_tumor} cm³" in maths
    assert config.least_share == 1 / 5, "maths.md says one fifth"
    assert f"and ends at {FULL}" in maths
    assert f"probability {AtlasSettings().untrained} at nodes" in maths
    assert WIDTH == 10, "maths.md says ten times as wide"


def test_the_filters_in_maths_and_kernels_are_those_of_the_shipped_priors(maths):
    model, kernels = default_model(), (DOCS / "kernels.md").read_text("utf-8")
    for prior in (model.shape_z, model.shape_y):
        assert f"{prior.w.shape}, ({len(prior.b)},), scalar" in maths
        lines = prior.w.reshape(len(prior.w), -1)
        kinds = {tuple(w if w[abs(w).argmax()] > 0 else -w) for w in lines}
        assert f"{len(lines)} filters and {len(kinds)} kernels" in kernels


def _cells(text: str, name: str) -> list[str]:
    """The cells of the first row of a table that begins with `name`."""
    row = re.search(rf"^\| \**{re.escape(name)}\** \|(.*)\|$", text, re.M)
    assert row, name
    return [cell.strip(" *") for cell in row[1].split("|")]


def _round(cell: str, digits: int) -> str:
    """Every number of a cell with so many decimals."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.{digits}f}", cell)


def test_the_figures_on_accuracy_and_uncertainty_are_those_of_the_pages():
    accuracy, uncertainty = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("accuracy", "uncertainty"))
    patients, organs, atlas, intervals = (
        (ROOT / "research" / "results" / f"{name}.md").read_text("utf-8")
        for name in ("patients", "organs", "atlas", "intervals")
    )
    names = re.findall(r"^\| ([a-z ]+, mean of \d+) \|", accuracy, re.M)
    assert len(names) == 4
    for name in names:
        cells = _cells(patients, name)
        shown = ((0, 3), (1, 1), (3, 3), (4, 1), (7, 2))  # column and decimals: Dice, mm, Dice, mm, cm³
        assert _cells(accuracy, name) == [_round(cells[k], digits) for k, digits in shown], name
    names = (
        "Brainstem",
        "Hippocampus_L",
        "Hippocampus_R",
        "OpticChiasm",
        "OpticNrv_L",
        "OpticNrv_R",
        "Eye_L",
        "Eye_R",
    )
    for slices in (1, 3, 5):
        parts = [re.split(r"^## ", organs, flags=re.M), [f"Head {n}, {slices} mm\n" for n in (10, 20)]]
        scans = [next(part for part in parts[0] if part.startswith(title)) for title in parts[1]]
        pairs = [" / ".join(_cells(scan, name)[0] for scan in scans) for name in names]
        assert f"| {slices} mm | " + " | ".join(pairs) + " |" in accuracy, slices
    for kind in ("votes", "predicted"):
        errors = re.findall(rf"^\| {kind} \| ([\d.]+) \|", intervals, re.M)
        assert len(errors) == 2
        assert all(error in uncertainty for error in errors)
    heads = [_cells(atlas, f"as shipped, head {n}")[4:] for n in (10, 20)]
    assert "| " + " | ".join(" / ".join(pair) for pair in zip(*heads)) + " |" in accuracy


def test_the_figures_on_the_model_card_are_those_of_accuracy():
    card, accuracy = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("model-card", "accuracy"))
    groups = {
        "core, clearly enhancing (15)": "clearly enhancing, mean of 15",
        "core, all (21)": "all, mean of 21",
    }
    for name, group in groups.items():
        assert _cells(card, name) == [f"Dice {_cells(accuracy, group)[0]}"]
    assert _cells(card, "whole tumor, all (21)")[0].startswith(
        f"Dice {_cells(accuracy, 'all, mean of 21')[2]}, "
    )


DATA = ROOT / "src" / "tumoar" / "data"
DIGEST = re.compile(r"`(\w+\.(?:npz|json|toml))`(?: \|)? ([0-9a-f]{12,64})\b")
OF_THE_MODEL = {
    "accuracy.md": {*SHIPPED["default"]},
    "uncertainty.md": {*SHIPPED["default"], "calibration.json"},
    "speed.md": {"shape.npz"},
    "model-card.md": {
        *SHIPPED["default"],
        *SHIPPED["brain"],
        "calibration.json",
        "tumor_means.toml",
        "surroundings.npz",
    },
}
"""Pages with figures of the model, and the files that must be those in the package."""


def _digest(name: str) -> str:
    return hashlib.sha256((DATA / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("page", OF_THE_MODEL)
def test_figures_are_of_the_model_in_the_package(page):
    """When the model changes, measure again, or remove the figures; then correct the digests on the page."""
    found = DIGEST.findall((DOCS / page).read_text("utf-8"))
    assert {name for name, _ in found} == OF_THE_MODEL[page]
    assert [(name, digest) for name, digest in found if not _digest(name).startswith(digest)] == []


def test_plots_are_of_the_model_in_the_package():
    """Each says in its metadata of which (`research/plots.py`, `research/worst.py`)."""
    pictures = sorted((DOCS / "images").glob("*.png"))
    stamps = {}
    for path in pictures:
        with Image.open(path) as picture:
            stamps[path.name] = picture.text.get("Model", "")
    assert sorted(name for name, text in stamps.items() if text == "none") == ["organs.png", "stages.png"]
    for name, text in stamps.items():
        found = dict(pair.split() for pair in text.split(", ")) if text != "none" else {}
        assert text, f"{name} does not say of which model it is"
        assert [file for file, digest in found.items() if not _digest(file).startswith(digest)] == [], name


def test_every_picture_is_on_a_page():
    shown = {name for page in PAGES for name in re.findall(r"images/(\w+\.png)", page.read_text("utf-8"))}
    assert {path.name for path in (DOCS / "images").glob("*.png")} - shown == set()


def test_the_files_and_names_in_maths_exist(maths):
    src = ROOT / "src" / "tumoar"
    rows = re.findall(r"^\|.*\|(.*)\|[^|]*\|([^|]*)\|$", maths, re.M)
    checked = 0
    for names, files in rows:
        paths = [src / name for name in re.findall(r"`([\w/]+\.py)`", files)]
        text = "".join(path.read_text("utf-8") for path in paths)
        for name in re.findall(r"`(?:\w*\.)?(\w+)`", names) if paths else ():
            checked += 1
            assert re.search(rf"\b{name}\b", text), f"{name} is not in {files}"
    assert checked > 30
