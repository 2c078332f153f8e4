"""The report shows what the result says, holds all it shows, and asks nothing of the outside."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import pytest
import small_head
from small_result import small_result

from tumoar.geometry.image import Case, Input
from tumoar.report import face, read_data, render, report_data, volumes
from tumoar.report.pictures import outlines, plane
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import UnreadableFileError
from tumoar.vocabulary.notes import Note

NOTES = (Note("drift", "GTV </script><b>drifts</b> & more"), Note("B40", "eyes cannot be seen"))
MANIFEST = {
    "version": "0.0.1",
    "stamps": ["fast"],
    "threads": 2,
    "libraries": {"numpy": "2"},
    "model": {"atlas": "/home/jane-doe/atlas.npz"},
    "inputs": [{"file": "jane-doe.nii.gz"}],
    "key": "jane-doe",
}


@pytest.fixture(scope="module")
def result():
    return small_result()


@pytest.fixture(scope="module")
def data(result):
    return report_data(result, NOTES, MANIFEST)


@pytest.fixture(scope="module")
def html(data):
    return render(data)


class Page(HTMLParser):
    """Attributes of all tags, text of table cells and of elements by tag, without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._inside.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, text):
        if not {"script", "style"} & set(self._inside):
            self.texts.append(text)
            if "td" in self._inside:
                self.rows[-1][-1] += text


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def unpacked(nifti: str) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_bytes(gzip.decompress(b64decode(nifti)))


def test_the_page_gives_back_its_data(data, html):
    assert read_data(html) == data
    assert render(read_data(html)) == html
    assert json.loads(json.dumps(data)) == data


def test_the_same_result_makes_the_same_page(html):
    assert render(report_data(small_result(), NOTES, MANIFEST)) == html


def test_what_is_no_report_is_refused(data, html):
    with pytest.raises(UnreadableFileError):
        read_data("<html></html>")
    with pytest.raises(UnreadableFileError):
        read_data(render({**data, "format": 0}))


def test_volumes_in_the_table_are_those_of_the_result(page, result):
    cells = {row[0].strip(): row for row in page.rows if row}
    for organ in result.table.organs:
        volume = result.volume(organ.name)
        low, high = volume.spread(0.90)
        shown = [cell.strip() for cell in cells[organ.name][1:5]]
        spread = f"{low:.2f} – {high:.2f}"
        assert shown == [f"{volume.outlined:.2f}", spread, f"{volume.mean:.2f}", f"{volume.sd:.2f}"]
    assert result.volume("GTV").sd > 0
    assert result.volume("GTV").outlined == pytest.approx(result.mask("GTV").sum() / 1000)


def test_the_outlined_volume_is_that_of_the_written_structure(result):
    rows = [{"name": "GTV", "outlined_cm3": 12.34}]
    data = report_data(result, NOTES, MANIFEST | {"volumes": rows})
    assert next(v["outlined"] for v in data["volumes"] if v["name"] == "GTV") == 12.34


def test_the_page_calls_no_spread_an_interval(page):
    text = " ".join(page.texts)
    assert "spread of the samples" in text
    assert "too narrow to serve as an uncertainty" in text
    assert not re.search("interval|credible|90 %", text)


def test_volumes_for_the_viewer_are_those_of_the_result(data, result):
    labels = unpacked(data["labels"])
    assert np.array_equal(np.asarray(labels.dataobj), result.labels)
    assert np.array_equal(labels.affine, result.case.grid.affine)
    for row in data["maps"]:
        wanted = result.entropy() if row["name"] == "entropy" else result.probability(row["name"])
        shown = np.asarray(unpacked(row["nifti"]).dataobj) / 255 * row["top"]
        assert np.abs(shown - wanted).max() <= row["top"] / 255
    assert {"GTV", "Edema", "entropy"} <= {row["name"] for row in data["maps"]}
    visible = face.shown(result)
    for row, D in zip(data["contrasts"], result.case.D):
        low, high = row["window"]
        shown = np.asarray(unpacked(row["nifti"]).dataobj)
        wanted = np.clip((np.exp(D) - low) / (high - low), 0, 1)
        assert np.abs(shown / 255 - wanted)[visible].max() < 1 / 255
        assert (shown[~visible] == 0).all()


def test_the_page_stays_small_whatever_the_images(result, monkeypatch):
    """Fewer levels of gray where the budget is short, never more than half a level's width off."""
    images = volumes.apply_windows(result)
    full = sum(len(row["nifti"]) for row in volumes.contrast_volumes(result, images))
    monkeypatch.setattr(volumes, "BUDGET", full / 2)
    packed = volumes.contrast_volumes(result, images)
    assert sum(len(row["nifti"]) for row in packed) <= full * 2 / 3
    for row, (image, _) in zip(packed, images):
        shown = np.asarray(unpacked(row["nifti"]).dataobj).astype(int)
        assert 2 < len(np.unique(shown)) < len(np.unique(image))
        assert np.abs(shown - image).max() < 256 / len(np.unique(shown)) * 2


def test_notes_stand_on_the_page_as_they_are(html, page):
    text = "".join(page.texts)
    assert "NEEDS REVIEW" in text
    assert "Research use only; not a medical device" in text
    assert NOTES[0].text in text
    assert NOTES[1].text in text
    assert "fast" in text
    assert "<b>drifts</b>" not in html


def test_a_result_without_notes_is_ok(result):
    text = "".join(Page(render(report_data(result, (), {}))).texts)
    assert "NEEDS REVIEW" not in text
    assert "OK" in text


def test_nothing_is_loaded_from_elsewhere(html, page):
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
            assert value.startswith("data:"), f"{tag} {name}={value[:60]}"
        assert not re.search(r"url\((?!data:)", value)
    own = re.sub(r"<script>\(function\(sA,qA\).*?</script>", "", html, flags=re.DOTALL)
    assert len(own) < len(html) - 1_000_000, "the viewer was not recognized"
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|importScripts", own)
    policy = next(v for _, n, v in page.attributes if n == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"https?:|\*|'self'", policy)


def test_neither_paths_nor_names_of_files_are_told(html):
    for word in ("jane-doe", "atlas.npz"):
        assert word not in html


def test_the_mixtures_follow_the_histogram(data):
    """The curves weigh what the vote gives them, and the bias field is taken out: both have an area of 1."""
    for row in data["intensity"]:
        low, high = row["edges"]
        density = np.array(row["density"])
        width = (high - low) / len(density)
        assert density.sum() * width == pytest.approx(1, abs=0.01)
        assert sum(c["weight"] for c in row["components"]) == pytest.approx(1, abs=0.01)
        x = low + width * (np.arange(len(density)) + 0.5)
        model = sum(
            c["weight"] / c["sd"] / np.sqrt(2 * np.pi) * np.exp(-0.5 * ((x - c["mean"]) / c["sd"]) ** 2)
            for c in row["components"]
        )
        assert np.abs(model - density).sum() * width < 0.25


def test_bounds_on_means_are_where_the_table_of_contrasts_puts_them(data):
    flair = next(row for row in data["intensity"] if row["name"] == "FLAIR")
    edema = next(c for c in flair["constraints"] if c["mixture"] == "edema")
    brightest = max(small_head.MEANS["GWM"][1], small_head.MEANS["GGM"][1])
    assert edema["bound"] == pytest.approx(brightest + np.log(1.15))
    assert edema["mean"] == pytest.approx(small_head.MEANS["edema"][1])


def test_the_chain_and_the_fit_are_shown_whole(data, result):
    cubic = result.case.grid.voxel_volume / 1000
    (chain,) = data["convergence"]["chains"]
    assert chain["GTV"] == [info.core * cubic for info in result.infos[0]]
    assert [s["value"] for s in data["convergence"]["objective"]] == [s.objective for s in result.fit.trace]


def test_bias_fields_show_their_range_in_the_brain(data):
    t1c, flair = data["bias"]
    assert t1c["high"] / t1c["low"] == pytest.approx(np.exp(2 * 0.2 * np.cos(np.pi * 4.5 / 48)), rel=0.05)
    assert (flair["low"], flair["high"]) == (1, 1)


def test_pictures_show_the_patient_as_radiologists_do():
    """Right on the left, front or top at the top; sagittal slices with the front on the left."""
    i, j, k = np.indices((4, 5, 6))
    axial, coronal, sagittal = (plane(np.stack([i, j, k], -1), axis, 0) for axis in (2, 1, 0))
    assert axial[0, 0].tolist() == [3, 4, 0]
    assert coronal[0, 0].tolist() == [3, 0, 5]
    assert sagittal[0, 0].tolist() == [0, 4, 5]
    assert axial.shape[:2] == (5, 4)
    assert coronal.shape[:2] == (6, 4)


def test_pictures_go_through_the_tumor(data):
    assert np.allclose(data["center"], small_head.TUMOR_CENTER, atol=2)
    assert len(data["pictures"]) == 6
    edema = next(row["color"] for row in data["legend"] if row["name"] == "edema")
    for row in data["pictures"]:
        pixels = plt.imread(BytesIO(b64decode(row["png"])))[..., :3]
        assert pixels.shape == (96, 96, 3)
        assert (np.rint(255 * pixels) == list(bytes.fromhex(edema[1:]))).all(-1).any(), "its outline"


def test_outlines_are_closed_and_thin():
    labels = np.zeros((9, 9), int)
    labels[2:7, 2:7] = 3
    edge = outlines(labels)
    assert edge.sum() == 16
    assert not edge[3:6, 3:6].any()


def test_a_head_without_tumor_has_a_report():
    result = small_result(tumor=False)
    data = report_data(result, (), {})
    assert np.allclose(data["center"], (small_head.SIZE - 1) / 2, atol=1)
    assert "GTV" not in {row["name"] for row in data["maps"]}
    assert read_data(render(data)) == data


def test_computed_tomography_and_missing_values(result):
    """CT has a window on soft tissue, in HU, and no bias field; it is black where it is missing."""
    case = result.case
    D = case.D.copy()
    D[1] = 0.4
    D[1, :4] = np.nan
    D[1, -4:] = 15.0
    inputs = (case.inputs[0], Input("CT", "CT", case.grid, "RAS", np.eye(4), figures={"offset": 0.25}))
    mixed = Case(D, (case.contrasts[0], find_contrast("CT")), case.grid, "T1c", inputs, skull_stripped=False)
    data = report_data(replace(result, case=mixed), (), {}, keep_face=True)
    ct = np.asarray(unpacked(data["contrasts"][1]["nifti"]).dataobj)
    assert (ct[:4] == 0).all()
    assert (ct[-4:] == 255).all()
    assert (ct[10:20] == round(255 * 140 / 300)).all()
    assert [row["name"] for row in data["bias"]] == ["T1c"]
    assert data["intensity"][1]["unit"] == "HU"
    assert "offset 0.25" in "".join(Page(render(data)).texts)


def test_dose_curves_have_a_place(result):
    curve = {"name": "Brainstem", "color": "#2ca02c", "dose": [0.0, 30.0, 60.0], "volume": [100.0, 50.0, 0.0]}
    band = {"low": [100.0, 40.0, 0.0], "high": [100.0, 60.0, 5.0]}
    html = render(report_data(result, (), {"dose": [{**curve, **band}]}))
    assert 'id="dose"' in html
    assert 'class="band"' in html
    assert 'id="dose"' not in render(report_data(result, (), {}))


def test_several_chains_without_burn_in_are_all_drawn(data):
    (chain,) = data["convergence"]["chains"]
    convergence = {**data["convergence"], "burn_in": 0, "chains": [chain, chain]}
    html = render({**data, "convergence": convergence})
    assert html.count("--c:var(--gtv)") == render(data).count("--c:var(--gtv)") + 1
    assert "burn-in</text>" not in html
    assert not re.search(r'(width|height)="-', html[: html.index('id="data"')])
