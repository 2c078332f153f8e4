"""A result scored against references: what is delivered is compared, in the place where it was drawn."""

from __future__ import annotations

import shutil
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom import dcmread
from rt_files import contour_set, save
from small_study import build

from tumoar.cli import main
from tumoar.cli.evaluate import parse_values
from tumoar.geometry.image import Grid, Image
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.io.seg_read import read_seg
from tumoar.radiotherapy.agreement import HIDDEN, score
from tumoar.radiotherapy.export import export
from tumoar.simulate.orders import ORDERS, stored
from tumoar.vocabulary.errors import GeometryError, TumoarError, UnreadableFileError, UsageError
from tumoar.vocabulary.labels import default_labels

TABLE = default_labels()
ORGANS = [organ.name for organ in TABLE.organs]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A result with every organ, two of them under tumor, and its DICOM files on two series."""
    folder = tmp_path_factory.mktemp("scored")
    out, series = build(folder, organs=True)
    for name in ("t1c", "flair"):
        export(out, series[name], rtstruct=True, seg=True)
        shutil.copytree(out / "dicom", folder / f"on_{name}")
    return folder, out


def dices(scored):
    return {name: found.dice for name, found in scored.scores.items()}


def volumes(out):
    masks = {p.name.removesuffix(".nii.gz"): read_nifti(p) for p in (out / "structures").iterdir()}
    return {name: image.data.sum() * image.grid.voxel_volume / 1000 for name, image in masks.items()}


def test_tumor_lies_over_organs_here(study):
    """Or the tests below could not fail."""
    _, out = study
    labels = read_nifti(out / "segmentation.nii.gz").data
    for name in ("Hippocampus_L", "Brainstem", "Brain"):
        whole = read_nifti(out / "structures" / f"{name}.nii.gz").data > 0
        assert (whole & np.isin(labels, [t.index for t in TABLE.tumor])).sum() > 10


@pytest.mark.parametrize("file", ["RTSTRUCT", "SEG"])
@pytest.mark.parametrize("name", ["t1c", "flair"])
def test_a_result_against_its_own_export_is_perfect(study, name, file):
    folder, out = study
    scored = score(out, folder / f"on_{name}" / f"{file}.dcm", {}, {})
    assert set(scored.scores) == set(ORGANS)
    assert dices(scored) == dict.fromkeys(ORGANS, 1.0)
    assert all(found.hausdorff95 == 0 for found in scored.scores.values())
    assert scored.notes == ()
    if name == "t1c":
        expected = volumes(out)
        assert {n: s.volume for n, s in scored.scores.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("organ", "axes", "flips"),
    [
        *((organ, *order) for organ, order in zip(cycle(ORGANS), ORDERS[::3])),
        *(pytest.param("Hippocampus_L", *order, marks=pytest.mark.slow) for order in ORDERS),
        *(pytest.param(o, *order, marks=pytest.mark.slow) for o in ORGANS for order in ORDERS[7::20]),
    ],
)
def test_a_result_against_its_own_masks_is_perfect_in_every_storage_order(
    study, tmp_path, organ, axes, flips
):
    _, out = study
    image = stored(read_nifti(out / "structures" / f"{organ}.nii.gz"), axes, flips)
    write_nifti(tmp_path / "mask.nii.gz", image.data, image.grid)
    scored = score(out, tmp_path / "mask.nii.gz", {organ: [1]}, {})
    assert dices(scored) == {organ: 1.0}
    assert HIDDEN not in scored.notes


@pytest.mark.parametrize(("axes", "flips"), ORDERS[::7])
def test_label_maps_are_compared_where_no_tumor_hides_organs(study, tmp_path, axes, flips):
    _, out = study
    whole = read_nifti(out / "segmentation.nii.gz")
    image = stored(whole, axes, flips)
    write_nifti(tmp_path / "map.nii.gz", image.data, image.grid)
    for result in (out, out / "segmentation.nii.gz"):
        scored = score(result, tmp_path / "map.nii.gz", {}, {})
        assert dices(scored) == dict.fromkeys(ORGANS, 1.0)
        assert HIDDEN in scored.notes
    # A reference without tumor shows organs that the other map hides.
    healthy = np.array(whole.data)
    tumor = np.isin(healthy, [t.index for t in TABLE.tumor])
    healthy[tumor] = TABLE.structures[TABLE.l("left hippocampus")].index
    write_nifti(tmp_path / "healthy.nii.gz", healthy, whole.grid)
    found = dices(score(out, tmp_path / "healthy.nii.gz", {}, {}))
    assert {n: d for n, d in found.items() if n not in ("GTV", "Edema")} == dict.fromkeys(
        [n for n in ORGANS if n not in ("GTV", "Edema")], 1.0
    )
    assert found["GTV"] == 0.0


def test_a_label_map_with_values_hides_organs_too(study, tmp_path):
    _, out = study
    index = {s.name: s.index for s in TABLE.structures}
    core = next(t.index for t in TABLE.tumor if t.name == "core")
    edema = next(t.index for t in TABLE.tumor if t.name == "edema")
    meaning = {"Brainstem": [index["brainstem"]], "GTV": [core], "Edema": [edema]}
    scored = score(out, out / "segmentation.nii.gz", meaning, {})
    assert dices(scored) == {"Brainstem": 1.0, "GTV": 1.0, "Edema": 1.0}
    assert HIDDEN in scored.notes
    # Also if the tumor is not asked for.
    assert dices(score(out, out / "segmentation.nii.gz", {"Brainstem": [index["brainstem"]]}, {})) == {
        "Brainstem": 1.0
    }
    # A label map as result hides its organs from a mask.
    mask = out / "structures" / "Brainstem.nii.gz"
    scored = score(out / "segmentation.nii.gz", mask, {"Brainstem": [1]}, {})
    assert dices(scored) == {"Brainstem": 1.0}
    assert HIDDEN in scored.notes


@pytest.mark.parametrize("file", ["RTSTRUCT", "SEG"])
def test_a_label_map_against_contours(study, file):
    folder, out = study
    scored = score(out / "segmentation.nii.gz", folder / "on_t1c" / f"{file}.dcm", {}, {})
    assert dices(scored) == dict.fromkeys(ORGANS, 1.0)
    assert HIDDEN in scored.notes


def test_masks_on_another_input(study, tmp_path):
    """Drawn on the FLAIR, which lies 5 mm aside: the structures are carried over as the export does."""
    folder, out = study
    native = read_nifti(out / "native" / "FLAIR_segmentation.nii.gz")
    segments = read_seg(folder / "on_flair" / "SEG.dcm")
    from tumoar.io.seg_read import mask_on

    mask = mask_on(segments.frames["Brain"], native.grid, "Brain")
    write_nifti(tmp_path / "brain.nii.gz", mask.astype(np.uint8), native.grid)
    assert dices(score(out, tmp_path / "brain.nii.gz", {"Brain": [1]}, {})) == {"Brain": 1.0}


def renamed(path, to, names):
    data = dcmread(path)
    rows = data.StructureSetROISequence if "StructureSetROISequence" in data else data.SegmentSequence
    keyword = "ROIName" if "StructureSetROISequence" in data else "SegmentLabel"
    for row in rows:
        row[keyword].value = names.get(row[keyword].value, row[keyword].value)
    data.save_as(to)
    return to


@pytest.mark.parametrize("file", ["RTSTRUCT", "SEG"])
def test_names_of_clinics(study, tmp_path, file):
    folder, out = study
    names = {"Brainstem": "BRSTEM", "OpticNrv_L": "OPT NRV L", "Eye_L": "$x^$", "Brain": "Brain_PRV"}
    path = renamed(folder / "on_t1c" / f"{file}.dcm", tmp_path / "RS.dcm", names)
    scored = score(out, path, {}, {"$x^$": "Eye_L", "elsewhere": "Eye_R"})
    assert set(scored.scores) == set(ORGANS) - {"Brain"}
    assert dices(scored) == dict.fromkeys(scored.scores, 1.0)
    assert scored.mapped == {"$x^$"}
    assert scored.notes == (
        "BRSTEM was matched to Brainstem",
        "OPT NRV L was matched to OpticNrv_L",
        "$x^$ was matched to Eye_L",
        "structures of RS.dcm that were not compared: Brain_PRV",
        "structures of the result without a reference: Brain",
    )
    path = renamed(folder / "on_t1c" / f"{file}.dcm", tmp_path / "RS.dcm", {"Brain": "BRSTEM"})
    with pytest.raises(UsageError, match="2 structures match Brainstem"):
        score(out, path, {}, {})
    path = renamed(folder / "on_t1c" / f"{file}.dcm", tmp_path / "RS.dcm", {n: f"z{n}" for n in ORGANS})
    with pytest.raises(UsageError, match="no known structure"):
        score(out, path, {}, {})


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", *map(str, arguments)])
    out, err = capfd.readouterr()
    return end.value.code, out, err


def test_the_command(study, tmp_path, capfd):
    folder, out = study
    path = renamed(folder / "on_t1c" / "RTSTRUCT.dcm", tmp_path / "RS.dcm", {"Eye_L": "$x^$", "Brain": "B_R"})
    whole = folder / "on_t1c" / "SEG.dcm"
    code, told, err = call(
        capfd,
        out,
        out,
        "--reference",
        path,
        "--reference",
        whole,
        "--map",
        "$x^$=Eye_L",
        "-o",
        tmp_path / "o",
    )
    assert (code, err) == (0, "")
    assert "note: out: $x^$ was matched to Eye_L" in told
    assert "note: out: structures of RS.dcm that were not compared: B_R" in told
    summary = [line for line in told.splitlines() if line.startswith("Brain ") and "  patients 1" in line]
    assert len(summary) == 7
    assert (tmp_path / "o" / "boxes.png").stat().st_size > 1000
    for arguments, sentence in (
        (["--map", "Eye=Eye_L"], "E2-map no structure 'Eye' in the references"),
        (["--map", "Eye"], "E2-map 'Eye' is not a pair of names"),
        (["--values", "GTV=1"], "E2-evaluate --values is for label maps"),
    ):
        code, _, err = call(capfd, out, "--reference", whole, *arguments)
        assert (code, err[: len(sentence)]) == (2, sentence)
    mask = out / "structures" / "GTV.nii.gz"
    code, _, err = call(capfd, out, "--reference", mask, "--map", "a=GTV", "--values", "GTV=1")
    assert (code, err[:6]) == (2, "E2-map")


def test_what_is_not_compared_is_listed(study, tmp_path):
    _, out = study
    image = read_nifti(out / "structures" / "GTV.nii.gz")
    labels = np.array(image.data)
    labels[0, 0, 0] = 7
    write_nifti(tmp_path / "m.nii.gz", labels, image.grid)
    notes = score(out, tmp_path / "m.nii.gz", {"GTV": [1], "Edema": [3]}, {}).notes
    assert notes[0] == "no voxel of m.nii.gz has the value of Edema (3)"
    assert notes[1] == "values of m.nii.gz that were not compared: 7"
    assert notes[2].startswith("structures of the result without a reference: Brainstem")


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1e30])
def test_values_that_are_no_labels_are_refused(study, tmp_path, value):
    _, out = study
    image = read_nifti(out / "structures" / "GTV.nii.gz")
    data = image.data.astype(np.float32)
    data[1, 1, 1] = value
    write_nifti(tmp_path / "m.nii.gz", data, image.grid)
    with pytest.raises(UnreadableFileError, match="whole numbers"):
        score(out, tmp_path / "m.nii.gz", {"GTV": [1]}, {})


def test_a_result_in_another_convention_is_refused(study, tmp_path):
    """A mask of 0 and 1 is not taken for white matter without a word."""
    _, out = study
    mask = out / "structures" / "Brainstem.nii.gz"
    scored = score(mask, mask, {"Brainstem": [1]}, {})
    assert scored.notes[0] == "no voxel of the result is Brainstem"
    image = read_nifti(mask)
    write_nifti(tmp_path / "m.nii.gz", image.data * np.uint8(100), image.grid)
    with pytest.raises(UsageError, match="result is not a tumoar label map"):
        score(tmp_path / "m.nii.gz", mask, {"Brainstem": [1]}, {})


def test_segments_beside_the_image_are_refused(study, tmp_path):
    folder, out = study
    data = dcmread(folder / "on_t1c" / "SEG.dcm")
    for group in data.PerFrameFunctionalGroupsSequence:
        place = group.PlanePositionSequence[0]
        place.ImagePositionPatient = [float(v) + 0.5 for v in place.ImagePositionPatient]
    data.save_as(tmp_path / "SEG.dcm")
    with pytest.raises(GeometryError, match="are not voxels of the image"):
        score(out, tmp_path / "SEG.dcm", {}, {})


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda d: d.SegmentSequence[1].__setattr__("SegmentLabel", "GTV"),
            "two segments have the label GTV",
        ),
        (lambda d: d.SegmentSequence[1].__setattr__("SegmentLabel", ""), "segment 2 has no label"),
        (lambda d: d.SegmentSequence[1].__setattr__("SegmentNumber", 1), "segment number 1 appears twice"),
        (lambda d: d.SegmentSequence.pop(), "which the file does not list"),
        (lambda d: d.PerFrameFunctionalGroupsSequence.pop(), "positions"),
        (lambda d: d.__setattr__("SegmentationType", "LABELMAP"), "not BINARY or FRACTIONAL"),
        (lambda d: d.__delattr__("PixelData"), "no pixel data"),
        (lambda d: d.__setattr__("NumberOfFrames", 10**9), "image too large"),
        (
            lambda d: d.SharedFunctionalGroupsSequence[0].__delattr__("PixelMeasuresSequence"),
            "a frame without",
        ),
        (lambda d: d.__delattr__("PerFrameFunctionalGroupsSequence"), "damaged"),
    ],
)
def test_segmentations_that_contradict_themselves_are_refused(study, tmp_path, edit, sentence):
    folder, out = study
    data = dcmread(folder / "on_t1c" / "SEG.dcm")
    edit(data)
    data.save_as(tmp_path / "SEG.dcm")
    with pytest.raises(TumoarError) as refusal:
        score(out, tmp_path / "SEG.dcm", {}, {})
    assert sentence in str(refusal.value)


def test_contours_beyond_the_image_are_noted(study, tmp_path):
    _, out = study
    square = np.array([[10, 10, 0], [30, 10, 0], [30, 30, 0], [10, 30, 0.0]])
    planes = [square + np.array([0, 0, z]) for z in range(40, 60)]
    scored = score(out, save(contour_set({"Brain": planes}, "1.2.1"), tmp_path / "RS.dcm"), {}, {})
    assert "11 contours of Brain reach beyond the image, where they are not compared" in scored.notes


def test_what_cannot_be_checked_is_noted(tmp_path):
    out, _ = build(tmp_path, linked=False)
    square = np.array([[10, 10, 0], [30, 10, 0], [30, 30, 0], [10, 30, 0.0]])
    planes = [square + np.array([0, 0, z]) for z in range(10, 20)]
    path = save(contour_set({"Brain": planes}, "1.9"), tmp_path / "RS.dcm")
    notes = score(out, path, {}, {}).notes
    assert notes[0].startswith("the result has no frame of reference")


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["GTV", "GTV=", "GTV=x", "GTV=1,", "GTV=1.5", "GTV=1_0", "GTV=१", "GTV==1", "=1", "", "GTV+=1", "Gtv=1"],
)
def test_values_that_make_no_sense(text):
    with pytest.raises(UsageError):
        parse_values([text], ORGANS)


def test_values():
    assert parse_values([" GTV = 2, 3 ,2"], ORGANS) == {"GTV": [2, 3]}
    for given_ in (["GTV=1", "GTV=2"], ["GTV+GTV=1"], ["GTV+Edema=1", "Edema+GTV=2"]):
        with pytest.raises(UsageError, match="given twice"):
            parse_values(given_, ORGANS)


PARTS = st.sampled_from([*ORGANS, "+", "=", ",", "1", "-2", " ", "9" * 12, "x", "\0", "$"]) | st.text(
    max_size=2
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.lists(PARTS, max_size=6).map("".join), max_size=3))
def test_any_values_are_understood_or_refused(texts):
    try:
        found = parse_values(texts, ORGANS)
    except TumoarError:
        return
    assert len(found) == len(texts)
    assert all(set(name.split("+")) <= set(ORGANS) and numbers for name, numbers in found.items())


def test_a_mask_that_lies_elsewhere_is_refused(study, tmp_path):
    _, out = study
    image = read_nifti(out / "structures" / "GTV.nii.gz")
    affine = image.grid.affine.copy()
    affine[0, 3] += 1
    write_nifti(tmp_path / "m.nii.gz", image.data, Grid(image.grid.shape, affine))
    with pytest.raises(GeometryError, match="lies on the grid of none"):
        score(out, tmp_path / "m.nii.gz", {"GTV": [1]}, {})
    assert isinstance(image, Image)
