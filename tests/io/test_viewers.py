"""Labels for 3D Slicer and ITK-SNAP, read back by their own libraries."""

import re

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from tumoar.geometry.image import Grid, Image
from tumoar.io.rois import Roi
from tumoar.io.viewers import arrange_layers, write_color_table, write_itksnap, write_seg_nrrd
from tumoar.simulate.orders import ORDERS, stored
from tumoar.vocabulary.labels import Code

SHAPE = (11, 9, 7)
TURN = np.array([[0.96, -0.28, 0.0], [0.28, 0.96, 0.0], [0.0, 0.0, 1.0]])
AFFINE = np.eye(4)
AFFINE[:3, :3] = TURN * [0.8, 1.1, 2.5]
AFFINE[:3, 3] = -30.0, 12.0, 40.0
CODE = Code("12738006", "Brain")


def bodies():
    """A left, a right, an overlapping and an empty structure in RAS."""
    masks = {name: np.zeros(SHAPE, bool) for name in ("Eye_L", "Eye_R", "Brain", "GTV")}
    masks["Eye_L"][1:3, 6:8, 4:6] = True
    masks["Eye_R"][8:10, 6:8, 4:6] = True
    masks["Brain"][1:10, 1:7, 0:5] = True
    return masks


def drawn(axes, flips):
    """The structures and their grid in one storage order."""
    grid = Grid(SHAPE, AFFINE)
    images = {n: stored(Image(m.astype(np.uint8), grid), axes, flips) for n, m in bodies().items()}
    rois = [
        Roi(n, "GTV" if n == "GTV" else "ORGAN", "#ff8000", np.asarray(i.data, bool), CODE)
        for n, i in images.items()
    ]
    return rois, next(iter(images.values())).grid


def centers():
    """World centers (RAS) of the structures that are not empty, from the untransformed bodies."""
    grid = Grid(SHAPE, AFFINE)
    return {n: grid.world(np.argwhere(m).mean(0)) for n, m in bodies().items() if m.any()}


def require_places(found):
    for name, expected in centers().items():
        assert found[name] == pytest.approx(expected, abs=1e-6), name
    assert found["Eye_L"][0] < found["Eye_R"][0]


def segments(header):
    """Name, layer and value of each segment of a header."""
    count = len([k for k in header if re.fullmatch(r"Segment\d+_Name", k)])
    return [
        (header[f"Segment{n}_Name"], int(header[f"Segment{n}_Layer"]), int(header[f"Segment{n}_LabelValue"]))
        for n in range(count)
    ]


@pytest.mark.parametrize(("axes", "flips"), ORDERS, ids=str)
def test_segmentations_keep_places_and_sides_in_every_storage_order(tmp_path, axes, flips):
    rois, grid = drawn(axes, flips)
    path = tmp_path / "structures.seg.nrrd"
    write_seg_nrrd(path, rois, grid)
    image = sitk.ReadImage(str(path))
    header = {key: image.GetMetaData(key) for key in image.GetMetaDataKeys()}
    values = sitk.GetArrayFromImage(image).reshape(*image.GetSize()[::-1], -1)
    found = {}
    for name, layer, value in segments(header):
        there = np.argwhere(values[..., layer] == value)
        assert (len(there) > 0) == (name != "GTV")
        if len(there):
            place = image.TransformContinuousIndexToPhysicalPoint(there.mean(0)[::-1].tolist())
            found[name] = np.array(place) * [-1, -1, 1]
    require_places(found)


@pytest.mark.parametrize("number", [0, 13, 30, 47])
def test_pynrrd_reads_the_same(tmp_path, number):
    nrrd = pytest.importorskip("nrrd")
    rois, grid = drawn(*ORDERS[number])
    write_seg_nrrd(tmp_path / "structures.seg.nrrd", rois, grid)
    values, header = nrrd.read(str(tmp_path / "structures.seg.nrrd"))
    assert header["space"] == "left-posterior-superior"
    assert np.isnan(header["space directions"][0]).all()
    steps, origin = header["space directions"][1:], header["space origin"]
    found = {}
    for name, layer, value in segments(header):
        there = np.argwhere(values[layer] == value)
        if len(there):
            found[name] = (there.mean(0) @ steps + origin) * [-1, -1, 1]
    require_places(found)


def test_slicerio_finds_names_colors_and_terminology(tmp_path):
    slicerio = pytest.importorskip("slicerio")
    rois, grid = drawn(*ORDERS[0])
    write_seg_nrrd(tmp_path / "structures.seg.nrrd", rois, grid)
    found = slicerio.read_segmentation(str(tmp_path / "structures.seg.nrrd"))
    assert list(slicerio.segment_names(found)) == ["Eye_L", "Eye_R", "Brain", "GTV"]
    for roi in rois:
        segment = slicerio.segment_from_name(found, roi.name)
        assert segment["color"] == pytest.approx([1, 128 / 255, 0], abs=1e-5)
        assert segment["terminology"]["type"] == ["SCT", "12738006", "Brain"]
        category = segment["terminology"]["category"]
        assert category[2].startswith("Anatomical" if roi.kind == "ORGAN" else "Morphologically")
        layer = found["voxels"][segment["layer"]]
        assert np.array_equal(layer == segment["labelValue"], roi.mask)


def test_structures_that_do_not_overlap_make_a_plain_image(tmp_path):
    rois, grid = drawn(*ORDERS[0])
    write_seg_nrrd(tmp_path / "two.seg.nrrd", rois[:2], grid)
    image = sitk.ReadImage(str(tmp_path / "two.seg.nrrd"))
    assert image.GetNumberOfComponentsPerPixel() == 1
    assert image.GetSize() == SHAPE


def test_layers_hold_every_mask_exactly():
    rng = np.random.default_rng(0)
    masks = [rng.random((6, 5, 4)) < share for share in rng.uniform(0, 0.5, 30)]
    layers, places = arrange_layers(masks, (6, 5, 4))
    for mask, (layer, value) in zip(masks, places):
        assert np.array_equal(layers[layer] == value, mask)
    assert len(layers) < len(masks)


def test_more_masks_than_values_fit_in_a_layer():
    masks = [np.zeros((7, 7, 7), bool) for _ in range(300)]
    for number, mask in enumerate(masks):
        mask.flat[number] = True
    layers, places = arrange_layers(masks, (7, 7, 7))
    assert len(layers) == 2
    assert all((layers[at] == value).sum() == 1 for at, value in places)


def test_equal_structures_give_equal_bytes(tmp_path):
    rois, grid = drawn(*ORDERS[5])
    for name in ("a", "b"):
        write_seg_nrrd(tmp_path / f"{name}.seg.nrrd", rois, grid)
    assert (tmp_path / "a.seg.nrrd").read_bytes() == (tmp_path / "b.seg.nrrd").read_bytes()


ROWS = [
    {"index": 0, "name": "background", "tg263": "", "color": "#000000"},
    {"index": 9, "name": "left eye tissue", "tg263": "Eye_L", "color": "#0a64ff"},
]


def test_color_table_has_five_numbers_and_a_name_without_spaces(tmp_path):
    write_color_table(tmp_path / "x.ctbl", ROWS)
    head, *lines = (tmp_path / "x.ctbl").read_text().splitlines()
    assert head.startswith("# Color table file")
    assert [line.split() for line in lines] == [
        ["0", "Clear_Label", "0", "0", "0", "0"],
        ["9", "left_eye_tissue_(Eye_L)", "10", "100", "255", "255"],
    ]


def test_label_descriptions_of_itk_snap(tmp_path):
    write_itksnap(tmp_path / "x.txt", ROWS)
    lines = [text for text in (tmp_path / "x.txt").read_text().splitlines() if not text.startswith("#")]
    form = re.compile(r'\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.]+)\s+([01])\s+([01])\s+"([^"]*)"')
    assert [form.fullmatch(line).groups() for line in lines] == [
        ("0", "0", "0", "0", "0", "0", "0", "Clear Label"),
        ("9", "10", "100", "255", "1", "1", "1", "left eye tissue (Eye_L)"),
    ]
