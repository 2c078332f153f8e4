"""Preparation of label maps: on a small drawn head with known flaws, and on the real ones where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage as ndi
from source_head import EYES, GRID, SHAPE, ball, head

from tumoar.geometry.image import Grid
from tumoar.geometry.orientation import reorient
from tumoar.io.nifti import read_nifti
from tumoar.train import eye_sockets
from tumoar.train.align import align
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import (
    absorb_islands,
    fill_speckle,
    find_out_of_range,
    measure_volumes,
    prepare_head,
    require_labels,
)
from tumoar.vocabulary.errors import GeometryError, TumoarError, UnreadableFileError
from tumoar.vocabulary.labels import default_labels

LABELS, TABLE = default_labels(), default_heads()


@pytest.fixture(scope="module")
def prepared():
    return prepare_head(head(), GRID, TABLE, LABELS)


def mask(prepared, name):
    return prepared == LABELS.structures[LABELS.l(name)].index


def test_all_trained_structures_and_no_other(prepared):
    assert set(np.unique(prepared)) == {s.index for s in LABELS.structures if s.trained}


@pytest.mark.parametrize("side", ["left", "right"])
def test_nerve_is_one_piece_from_globe_to_chiasm(prepared, side):
    nerve = mask(prepared, f"{side} optic nerve")
    assert ndi.label(nerve, np.ones((3, 3, 3)))[1] == 1
    grown = ndi.binary_dilation(nerve, np.ones((3, 3, 3)))
    assert (grown & mask(prepared, "optic chiasm")).any()
    assert (grown & mask(prepared, f"{side} eye tissue")).any()


def test_nothing_of_the_nerve_lies_behind_the_chiasm(prepared):
    chiasm = np.argwhere(mask(prepared, "optic chiasm"))[:, 1].mean()
    for side in ("left", "right"):
        assert np.argwhere(mask(prepared, f"{side} optic nerve"))[:, 1].min() > chiasm


@pytest.mark.parametrize(("side", "eye"), [("left", EYES[0]), ("right", EYES[1])])
def test_globe_has_a_closed_wall_and_a_lens(prepared, side, eye):
    fluid, tissue = mask(prepared, f"{side} eye fluid"), mask(prepared, f"{side} eye tissue")
    touched = ndi.binary_dilation(fluid) & ~fluid
    assert tissue[touched].all()
    assert (fluid | tissue).sum() == pytest.approx(4 / 3 * np.pi * 11**3, rel=0.05)
    inside = tissue & ball(eye, 9)
    assert 0.08 < inside.sum() / 1000 < 0.16
    assert np.argwhere(inside)[:, 1].mean() > eye[1] + 4


def test_speckle_and_stray_pieces_are_gone(prepared):
    inner = ball((48, 38, 46), (25, 20, 15)) & ~ball((48, 34, 24), (12, 12, 16))
    assert not (prepared[inner] == 0).any()
    for name in TABLE.cleaning["single"]:
        assert ndi.label(mask(prepared, name), np.ones((3, 3, 3)))[1] == 1


def test_muscles_are_thicker_than_marked_and_fat_is_around_them(prepared):
    marked = (head() == 508).sum()
    muscles, fat = mask(prepared, "eye socket muscles"), mask(prepared, "eye socket fat")
    assert 1.1 * marked < muscles.sum() < 2.5 * marked
    assert (ndi.binary_dilation(muscles) & fat).sum() > 0.3 * muscles.sum()
    assert np.argwhere(fat)[:, 1].max() <= EYES[0][1] + TABLE.fat.front + 1


def test_volumes_out_of_range_are_told(prepared):
    measured = measure_volumes(prepared, GRID, LABELS)
    odd = find_out_of_range(measured, TABLE)
    assert odd["left hippocampus"][0] == measured["left hippocampus"] < 2.2
    assert "left eye fluid" not in odd


def _refused(label_map, grid=GRID, error=TumoarError):
    with pytest.raises(error) as caught:
        prepare_head(label_map, grid, TABLE, LABELS, name="some/where/head.nii.gz")
    assert "file: head.nii.gz" in str(caught.value)
    return str(caught.value)


def test_refusals_say_what_is_wrong():
    strange = head()
    strange[0, 0, 0] = 999
    assert "999" in _refused(strange, error=UnreadableFileError)
    assert "2 x 1 x 1 mm" in _refused(head(), Grid(SHAPE, np.diag([2.0, 1, 1, 1])), GeometryError)
    mirrored = Grid(SHAPE, np.diag([-1.0, 1, 1, 1]))
    assert "canonical" in _refused(head(), mirrored, GeometryError)
    swapped = np.ascontiguousarray(head()[::-1])
    assert "lies to the right" in _refused(swapped, error=GeometryError)
    assert "brainstem" in _refused(np.where(head() == 16, 2, head()), error=UnreadableFileError)
    one_eyed = head()
    one_eyed[ball(EYES[0], 12) & (one_eyed == 506)] = 507
    assert "two eyes" in _refused(one_eyed, error=UnreadableFileError)


def test_prepared_maps_are_recognized(prepared):
    require_labels(prepared, GRID, LABELS)
    with pytest.raises(UnreadableFileError, match="train prepare"):
        require_labels(head(), GRID, LABELS)


def test_a_code_may_be_listed_once():
    with pytest.raises(TumoarError, match="duplicate source code"):
        replace(TABLE, structures={**TABLE.structures, "brainstem": (16, 17)})


def test_small_holes_take_the_nearest_label():
    values = np.full((9, 9, 9), 5)
    values[:4] = 7
    values[1, 1, 1] = values[7, 7, 7] = 0
    filled = fill_speckle(values, (0,), 8)
    assert filled[1, 1, 1] == 7
    assert filled[7, 7, 7] == 5
    values = values.astype(np.uint8)
    assert set(np.unique(absorb_islands(values, 2))) == {5, 7}


def test_growing_by_less_than_a_voxel_adds_the_volume_of_the_dilated_shape():
    shape = (30, 30, 30)
    thin = ball((15, 15, 15), (2, 12, 2), shape)
    more = eye_sockets.grow(thin, 0.5, np.ones(shape, bool))
    assert more[thin].all()
    ideal = 4 / 3 * np.pi * (2.5 * 12.5 * 2.5)
    assert more.sum() == pytest.approx(ideal, rel=0.15)


def test_heads_are_aligned_to_one_box(prepared):
    moved = np.roll(prepared, (3, -2, 2), (0, 1, 2))
    common = align([prepared, moved], LABELS)
    first, second = common.place(prepared, LABELS), common.place(moved, LABELS)
    assert all(n % 16 == 0 for n in common.shape)
    assert (first == second).mean() > 0.99


@pytest.mark.shared
@pytest.mark.long
@pytest.mark.parametrize("number", ["02", "10", "20"])
def test_real_heads_have_published_volumes(shared_data, number):
    image, _ = reorient(read_nifti(shared_data / "heads" / f"head_{number}.nii.gz"))
    out = prepare_head(image.data.astype(np.int32), image.grid, TABLE, LABELS)
    assert find_out_of_range(measure_volumes(out, image.grid, LABELS), TABLE) == {}
