"""CTV, PTV and organs under tumor: lines in the viewer and the pictures, rows in the table."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import ndimage as ndi
from small_result import small_result

from tumoar.report import add_targets, grid_of_page, read_data, render, report_data
from tumoar.report.lines import STYLES, cut_dashes, draw_line
from tumoar.report.volumes import unpack
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.errors import UnreadableFileError

COLOR = "#d6006e"
ROWS = [
    {"name": "CTV", "margin_mm": 4.0, "outlined_cm3": 5.25, "how": "GTV + 4 mm in the brain"},
    {"name": "PTV", "margin_mm": 3.0, "outlined_cm3": 9.75, "how": "CTV + 3 mm"},
]


@pytest.fixture(scope="module")
def result():
    return small_result()


@pytest.fixture(scope="module")
def data(result):
    return report_data(result, (), {})


@pytest.fixture(scope="module")
def masks(result):
    return [ndi.binary_dilation(result.mask("GTV"), iterations=n) for n in (4, 7)]


@pytest.fixture(scope="module")
def with_targets(data, masks):
    return add_targets(data, ROWS, masks, COLOR)


def test_margins_have_styles_of_their_own(with_targets, masks):
    styles = {line["name"]: line["style"] for line in with_targets["lines"]}
    assert (styles["CTV"], styles["PTV"]) == ("dashed", "dotted")
    grid = grid_of_page(with_targets)
    for line, mask in zip(with_targets["lines"][-2:], masks):
        assert np.array_equal(unpack(line["nifti"], grid), mask)
    html = render(with_targets)
    assert read_data(html) == with_targets
    for row in ROWS:
        assert f'data-name="{row["name"]}"' in html
        assert f"{row['outlined_cm3']:.2f}" in html
        assert row["how"] in html


def test_pictures_are_drawn_again_with_lines(data, with_targets):
    assert [(p["contrast"], p["plane"]) for p in with_targets["pictures"]] == [
        (p["contrast"], p["plane"]) for p in data["pictures"]
    ]
    for before, after in zip(data["pictures"], with_targets["pictures"]):
        a, b = (plt.imread(BytesIO(b64decode(p["png"])))[..., :3] for p in (before, after))
        ink = (np.rint(255 * b) == list(bytes.fromhex(COLOR[1:]))).all(-1)
        assert (ink & (np.abs(a - b).max(-1) > 0)).sum() > 50


def test_margins_given_again_replace_the_first_ones(with_targets, masks):
    again = add_targets(with_targets, ROWS[:1], masks[:1], COLOR)
    assert [line["name"] for line in again["lines"]] == ["CTV"]
    assert [row["name"] for row in again["targets"]] == ["CTV"]


def test_a_page_of_an_earlier_version_is_rendered_and_gets_margins(data, masks):
    new = ("case", "lines", "targets", "entropy", "shown_first")
    old = {k: v for k, v in data.items() if k not in new}
    old["volumes"] = [{k: v for k, v in row.items() if k != "under_tumor"} for row in data["volumes"]]
    assert read_data(render(old)) == old
    assert "PTV" in render(add_targets(old, ROWS, masks, COLOR))


def test_volumes_of_another_size_are_refused(data, masks):
    other = {**data, "labels": data["labels"], "grid": {**data["grid"], "shape": [47, 48, 48]}}
    with pytest.raises(UnreadableFileError, match="damaged"):
        add_targets(other, ROWS, masks, COLOR)


def test_organs_under_tumor_are_marked(result):
    """The tumor of the small head covers white matter: taken for the brainstem, it is under tumor."""
    table = result.table
    votes = result.votes
    covered = (votes.z == 1) & (votes.l == table.l("white matter"))
    votes.l[covered] = table.l("brainstem")
    data = report_data(result, (), {})
    row = next(v for v in data["volumes"] if v["name"] == "Brainstem")
    assert row["under_tumor"] == pytest.approx(covered.sum() / 1000)
    line = next(line for line in data["lines"] if line["name"] == "Brainstem")
    assert np.array_equal(unpack(line["nifti"], result.case.grid) > 0, covered)
    assert f"{covered.sum() / 1000:.2f} cm³ under tumor" in render(data)
    votes.l[covered] = table.l("white matter")


def test_dashes_cover_their_share_of_a_loop():
    square = np.array([[0.0, 0], [0, 30], [30, 30], [30, 0]])
    for dash, gap in (STYLES["dashed"], STYLES["dotted"]):
        lengths = [np.linalg.norm(np.diff(d, axis=0), axis=1).sum() for d in cut_dashes(square, dash, gap)]
        assert sum(lengths) == pytest.approx(120 * dash / (dash + gap))
        assert np.allclose(lengths, lengths[0])
    (whole,) = cut_dashes(square, *STYLES["solid"])
    assert np.linalg.norm(np.diff(whole, axis=0), axis=1).sum() == pytest.approx(120)


def test_a_dotted_line_has_less_ink_than_a_dashed_one_and_lies_at_the_border():
    mask = np.zeros((60, 60), bool)
    mask[15:45, 15:45] = True
    empty = np.full((120, 120, 3), 90, np.uint8)
    inks = {}
    for style in ("solid", "dashed", "dotted"):
        drawn = (draw_line(empty, mask, COLOR, style, 2) == list(bytes.fromhex(COLOR[1:]))).all(-1)
        far = ndi.distance_transform_edt(
            ~(mask.repeat(2, 0).repeat(2, 1) ^ ndi.binary_erosion(mask.repeat(2, 0).repeat(2, 1)))
        )
        assert far[drawn].max() <= 3
        inks[style] = drawn.sum()
    assert inks["dotted"] < inks["dashed"]
    assert inks["solid"] > 0


def test_the_name_of_a_case_is_on_the_page_and_nowhere_else(result):
    data = report_data(result, (), {}, case_name=CaseName("Phantom 7", "2026-11-18"))
    html = render(data)
    assert "<title>Phantom 7 · tumoar" in html
    assert "<h1>Phantom 7 · 2026-11-18</h1>" in html
    assert "Phantom" not in render(report_data(result, (), {}))


def test_a_page_with_an_unsafe_name_is_damaged(data):
    html = render({**data, "case": {"name": "<script>x</script>", "date": ""}})
    with pytest.raises(UnreadableFileError, match="damaged"):
        read_data(html)
    assert "<script>x" not in html


def test_the_viewer_opens_on_t1c_wherever_it_stands(result, data):
    assert data["shown_first"] == "T1c"
    turned = {**data, "contrasts": data["contrasts"][::-1]}
    assert 'value="1" checked><span>T1c' in render(turned)
    assert "FIRST = 1," in render(turned)
    assert [p["contrast"] for p in data["pictures"][:3]] == ["T1c"] * 3
