"""One interface for a result: the same assertions hold in memory and on disk."""

from __future__ import annotations

import io
import re
from base64 import b64decode
from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
import small_head
from rt_files import write_rtdose, write_series
from small_run import stand_ins

import tumoar
from tumoar.geometry.image import Grid, Image, Input
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.rtstruct import read_rtstruct
from tumoar.report import notebook_html, read_page
from tumoar.vocabulary.errors import GeometryError, IntegrityError
from tumoar.vocabulary.notes import Note

N = small_head.SIZE
FLIP = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
KINDS = ("in memory", "on disk")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A T1c as a DICOM series, a dose that rises from left to right, and one of elsewhere."""
    path = tmp_path_factory.mktemp("results")
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(path / "t1c", values, Grid((N, N, N), FLIP), frame="1.2.1")
    grid = Grid((20, 20, 20), np.diag([3.0, 3.0, 3.0, 1.0]))
    gray = np.broadcast_to(10 + 3.0 * np.arange(20)[:, None, None], grid.shape)
    for name, frame in (("RD.dcm", "1.2.1"), ("elsewhere.dcm", "1.2.9")):
        write_rtdose(path / name, gray, grid, frame)
    return path


@pytest.fixture(scope="module")
def results(folder):
    """The same patient twice: T1c is the series, FLAIR has voxels of 2 mm."""
    case = small_head.case()  # with noise, so that the samples differ
    noise = 0.3 * np.random.default_rng(1).standard_normal(case.D.shape)
    case = replace(case, D=(case.D + noise).astype(np.float32))
    t1c, flair = case.inputs
    coarse = Grid((N // 2,) * 3, np.diag([2.0, 2.0, 2.0, 1.0]))
    inputs = (
        replace(t1c, grid=grid_of(only_series(folder / "t1c"))[0], orientation="LPS"),
        Input("FLAIR", "FLAIR", coarse, "RAS", flair.to_reference),
    )
    case = replace(case, grid=replace(case.grid, frame="1.2.1"), inputs=inputs)
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in stand_ins(case):
            patch.setattr(place, name, value)
        asked = {"t1c": "a", "flair": "b", "seed": 3, "margins": "ctv=3,ptv=1", "save_samples": True}
        live = tumoar.segment(**asked)
        stored = tumoar.segment(**asked, output=folder / "out")
    return dict(zip(KINDS, (live, stored)))


@pytest.fixture(params=KINDS)
def result(request, results):
    return results[request.param]


def test_each_kind_is_a_result(results):
    assert isinstance(results["in memory"], tumoar.Segmentation)
    assert isinstance(results["on disk"], tumoar.StoredResult)
    assert all(isinstance(found, tumoar.Result) for found in results.values())
    public = {name for name in vars(tumoar.Result) if not name.startswith("_")}
    assert public == {
        "contrasts", "dvh", "grid", "labels", "labels_on", "mask", "notes", "predicted", "probability",
        "reference", "report", "save", "stamps", "status", "structures", "to_rtstruct", "volume",
        "whole_tumor",
    }  # fmt: skip


def test_structures_are_named_with_margins_last(result):
    assert result.structures[-2:] == ("CTV", "PTV")
    assert {"GTV", "Edema", "Brain", "Brainstem"} <= set(result.structures)
    assert len(set(result.structures)) == len(result.structures)


def test_masks_lie_on_the_grid_and_margins_around_the_tumor(result):
    for name in result.structures:
        mask = result.mask(name)
        assert mask.dtype == bool
        assert mask.shape == result.grid.shape == result.labels.shape
    gtv, ctv, ptv = (result.mask(name) for name in ("GTV", "CTV", "PTV"))
    assert 0 < gtv.sum() < ctv.sum() < ptv.sum()
    assert not (gtv & ~ctv).any()
    assert not (ctv & ~ptv).any()


def test_labels_on_an_image_have_its_voxels_and_affine(result):
    for name, shape in (("T1c", (N, N, N)), ("flair", (N // 2,) * 3)):
        found = result.labels_on(name)
        assert found.data.shape == found.grid.shape == shape
        assert found.data.dtype == np.uint8
        assert (found.data > 0).any()
    assert np.allclose(result.labels_on("T1c").grid.affine, FLIP, atol=1e-5)
    with pytest.raises(KeyError, match="no 'CT'; there are: T1c, FLAIR"):
        result.labels_on("CT")


def test_volumes_have_one_type(result):
    cubic = result.grid.voxel_volume / 1000
    for name in result.structures:
        volume = result.volume(name)
        assert type(volume) is tumoar.Volume
        assert volume.outlined == pytest.approx(result.mask(name).sum() * cubic, abs=1e-4)
    gtv = result.volume("GTV")
    low, high = gtv.spread(0.90)
    assert low < gtv.mean < high
    assert gtv.sd > 0
    assert np.isnan([result.volume("CTV").mean, *result.volume("CTV").spread()]).all()


def test_fractions_are_those_of_structures_alone(result):
    fraction = result.probability("GTV")
    assert fraction.shape == result.grid.shape
    assert 0 <= fraction.min() <= fraction.max() <= 1
    with pytest.raises(KeyError, match="no 'CTV'"):
        result.probability("CTV")


def test_unknown_structures_are_key_errors(result):
    for method in (result.mask, result.probability, result.volume):
        with pytest.raises(KeyError, match=r"no 'Liver'.*there are: .*GTV"):
            method("Liver")


def test_status_and_notes_agree(result):
    assert result.status == ("NEEDS REVIEW" if result.notes else "OK")
    assert all(isinstance(note, Note) and note.id and note.text for note in result.notes)
    assert (result.contrasts, result.reference) == (("T1c", "FLAIR"), "T1c")


def test_a_result_in_text_fits_a_screen_and_names_no_folder(result, folder):
    lines = repr(result).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert result.status in lines[0]
    assert "T1c, FLAIR" in lines[1]
    volume = result.volume("GTV")
    assert any(line.startswith("GTV ") and f"{volume.outlined:.2f} cm³" in line for line in lines)
    assert str(folder) not in repr(result)


def test_a_notebook_shows_three_planes_and_the_volumes(result):
    page = result._repr_html_()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 3
    for text in pictures:
        picture = PIL.Image.open(io.BytesIO(b64decode(text, validate=True)))
        assert min(picture.size) > 20
    for name in result.structures:
        assert f"<td>{name}</td><td>{result.volume(name).outlined:.2f}</td>" in page


def test_a_result_is_saved_and_read_back(result, tmp_path):
    result.save(tmp_path / "copy")
    again = tumoar.load_result(tmp_path / "copy")
    assert again.structures == result.structures
    assert (again.status, again.notes) == (result.status, result.notes)
    assert np.array_equal(again.labels_on("FLAIR").data, result.labels_on("FLAIR").data)
    assert again.volume("PTV").outlined == pytest.approx(result.volume("PTV").outlined, abs=1e-4)
    with pytest.raises(IntegrityError, match="E12-B57"):
        result.save(tmp_path / "copy")
    result.save(tmp_path / "copy", overwrite=True)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    with pytest.raises(IntegrityError, match="E12-B57"):
        result.save(tmp_path / "theirs", overwrite=True)
    assert (tmp_path / "theirs" / "notes.txt").read_text() == "mine"


def test_a_dose_is_measured_with_its_samples(result, folder):
    found = result.dvh("GTV", folder / "RD.dcm")
    assert found.dvh.mean == pytest.approx(10 + 31, abs=0.7)  # where the tumor is
    assert found.dvh.volume == pytest.approx(result.volume("GTV").outlined, rel=1e-3)
    assert len(found.samples) == 10
    assert not result.dvh("CTV", folder / "RD.dcm").samples
    grid = Grid((20, 20, 20), np.diag([3.0, 3.0, 3.0, 1.0]))
    flat = Image(np.full(grid.shape, 7.0), grid)
    assert result.dvh("PTV", flat).dvh.mean == pytest.approx(7.0)
    with pytest.raises(GeometryError, match="different frames of reference"):
        result.dvh("GTV", folder / "elsewhere.dcm")
    with pytest.raises(KeyError, match="no 'Liver'"):
        result.dvh("Liver", flat)


def test_contours_hold_every_structure_that_is_there(result, folder, tmp_path):
    result.to_rtstruct(folder / "t1c", tmp_path / "RS.dcm")
    drawn = {outline.name for outline in read_rtstruct(tmp_path / "RS.dcm").outlines}
    assert drawn == {name for name in result.structures if result.volume(name).outlined > 0}


def test_the_report_is_written(result, tmp_path):
    result.report(tmp_path / "report.html")
    page = read_page(tmp_path / "report.html")
    assert page["status"] == result.status
    assert len(page["pictures"]) == 6
    shown = {row["name"]: row["outlined"] for row in page["volumes"]}
    assert shown["GTV"] == pytest.approx(result.volume("GTV").outlined, abs=1e-4)


def test_both_kinds_say_the_same(results):
    live, stored = results["in memory"], results["on disk"]
    assert live.structures == stored.structures
    assert live.notes == stored.notes
    for name in ("T1c", "FLAIR"):
        assert np.array_equal(live.labels_on(name).data, stored.labels_on(name).data)
    for name in live.structures:
        # the same voxels, stored in another order
        assert np.array_equal(live.mask(name), stored.mask(name)[::-1, ::-1])
        ours, theirs = live.volume(name), stored.volume(name)
        figures = [(v.outlined, v.mean, v.sd, *v.spread()) for v in (ours, theirs)]
        assert np.allclose(*figures, atol=1e-4, equal_nan=True)


def test_other_spreads_need_the_samples(results):
    low, high = results["in memory"].volume("GTV").spread(0.5)
    assert low <= high
    with pytest.raises(ValueError, match="only the central 90%"):
        results["on disk"].volume("GTV").spread(0.5)


def test_texts_are_escaped_in_notebooks():
    notes = [Note("B44", "<script>alert(1)</script>")]
    page = notebook_html("OK", ["<b>"], ["<i>"], {"<u>": tumoar.Volume(1.0)}, notes, [])
    assert not re.search(r"<(script|b>&|i>|u>)", page.replace("<b>OK</b>", ""))
    assert "&lt;script&gt;" in page


@pytest.mark.slow
def test_a_report_that_shows_the_face_gives_a_notebook_no_pictures(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in stand_ins():
            patch.setattr(place, name, value)
        stored = tumoar.segment(t1c="a", output=tmp_path / "out", keep_face=True)
    assert len(read_page(tmp_path / "out" / "report.html")["pictures"]) == 6
    page = stored._repr_html_()
    assert "image/png" not in page
    assert "<td>GTV</td>" in page


@pytest.mark.slow
def test_small_parts_are_removed_in_memory_as_on_disk(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        for place, name, value in stand_ins():
            patch.setattr(place, name, value)
        live = tumoar.segment(t1c="a", min_volume=5.0)
        stored = tumoar.segment(t1c="a", min_volume=5.0, output=tmp_path / "out")
    assert "min-volume" in [note.id for note in live.notes]
    assert live.notes == stored.notes
    assert not live.mask("GTV").any()
    assert live.volume("GTV").outlined == stored.volume("GTV").outlined == 0
