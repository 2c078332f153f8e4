"""Clinical definitions of organs: landmarks and rules on drawn shapes, and on the real label maps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage as ndi
from source_head import GRID, drawn_anatomy, head

from tumoar.geometry.image import Grid
from tumoar.geometry.orientation import reorient
from tumoar.geometry.solids import Globe, Tube, to_finer
from tumoar.io.nifti import read_nifti
from tumoar.result.scores import dice
from tumoar.train.clinical import (
    clinical_rules,
    define_brainstem,
    define_organs,
    find_dens,
    fit_globe,
    relabel,
)
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import prepare_head
from tumoar.vocabulary.errors import TumoarError
from tumoar.vocabulary.labels import default_labels

RULES = clinical_rules()
SHAPE = (60, 90, 120)


@pytest.fixture(scope="module")
def anatomy():
    return drawn_anatomy()


# ---- brainstem ---------------------------------------------------------------------------------------------


def midline(dens=True):
    """Brainstem, cord, ventral diencephalon, chiasm, and bone with a gap above the dens."""
    out = np.zeros(SHAPE, np.int32)
    out[26:35, 30:42, 40:90] = 16
    out[28:33, 33:39, 5:40] = 512
    out[8:53, 36:58, 78:92] = 28  # in front of the midbrain and above
    out[26:35, 30:40, 84:92] = 16
    out[26:35, 64:68, 76:80] = 85
    if dens:
        out[24:37, 46:54, 5:30] = 515
        out[24:37, 46:54, 38:60] = 515
    return out


def test_the_peduncles_belong_to_the_brainstem_and_the_hypothalamus_does_not():
    source = midline()
    out, landmarks = define_brainstem(source, source == 16, source == 85, RULES["brainstem"])
    commissure, mammillary = landmarks["posterior commissure"], landmarks["mammillary bodies"]
    assert commissure[1] < mammillary[1] < 66
    assert commissure[2] > mammillary[2]
    added = out & np.isin(source, [28])
    assert added[30, 44, 79]  # in front of the midbrain, under the plane
    assert not added[30, 56, 90]  # above it
    assert added[13, 44, 79]
    assert not added[:12].any()  # more than 18 mm from the middle
    _, j, k = np.nonzero(added)
    slope = (mammillary[2] - commissure[2]) / (mammillary[1] - commissure[1])
    assert (k <= commissure[2] + slope * (j - commissure[1]) + 1e-6).all()
    assert ndi.label(out, np.ones((3, 3, 3)))[1] == 1


def test_the_brainstem_ends_at_the_tip_of_the_dens():
    source = midline()
    tip = find_dens(source, 30.0, 40, RULES["brainstem"])
    assert tip is not None
    assert tip[2] == 30
    out, _ = define_brainstem(source, source == 16, source == 85, RULES["brainstem"])
    assert np.flatnonzero(out.any((0, 1)))[0] == 30
    assert out[30, 36, 35]  # cord between the dens and the end of the label


def test_without_a_dens_the_brainstem_ends_where_the_label_does():
    source = midline(dens=False)
    assert find_dens(source, 30.0, 40, RULES["brainstem"]) is None
    out, landmarks = define_brainstem(source, source == 16, source == 85, RULES["brainstem"])
    assert np.flatnonzero(out.any((0, 1)))[0] == 40
    assert "dens" not in landmarks


# ---- eyes --------------------------------------------------------------------------------------------------


def test_a_globe_whose_front_is_cut_is_closed():
    center, radius = np.array([30.3, 40.6, 30.1]), 12.0
    whole = sum((i - c) ** 2 for i, c in zip(np.indices((60, 80, 60)), center)) <= radius**2
    cut = whole.copy()
    cut[:, 48:] = False
    globe = fit_globe(cut, RULES["eye"])
    np.testing.assert_allclose(globe.center, center, atol=0.3)
    assert globe.radius == pytest.approx(radius, abs=0.3)
    closed = globe.depth(cut.shape) >= 0
    assert (whole & ~closed).sum() < 0.04 * whole.sum()
    front = np.flatnonzero(closed.any((0, 2)))[-1]
    assert front == pytest.approx(center[1] + 1.08 * radius, abs=1)


def test_depth_in_a_globe_is_the_same_at_half_the_spacing():
    globe = Globe(np.array([10.0, 12, 9]), 6.0, np.array([10.0, 14.5, 9]), 4.0)
    coarse, fine = globe.depth((20, 24, 18)), globe.depth((40, 48, 36), 2) / 2
    assert coarse[10, 12, 9] == pytest.approx(6)
    mean = fine.reshape(20, 2, 24, 2, 18, 2).mean((1, 3, 5))
    np.testing.assert_allclose(mean[:, :11], coarse[:, :11], atol=0.25)
    np.testing.assert_allclose((fine >= 0).sum() / 8, (coarse >= 0).sum(), rtol=0.05)


def test_a_tube_has_its_caliber_at_any_zoom():
    points = np.linspace([8.0, 5, 8], [8.0, 35, 8], 61)
    tube = Tube(points, np.full(61, 2.5))
    assert tube.length == pytest.approx(30)
    for zoom in (1, 2, 3):
        section = tube.rasterize((17 * zoom, 40 * zoom, 17 * zoom), zoom)[:, 20 * zoom]
        assert section.sum() / zoom**2 == pytest.approx(np.pi * 2.5**2, rel=0.08)
        middle = to_finer(np.array([8.0, 8.0]), zoom)
        np.testing.assert_allclose(ndi.center_of_mass(section), middle, atol=0.1)


# ---- a whole head ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["L", "R"])
def test_nerves_are_one_tube_from_the_globe_to_the_chiasm(anatomy, side):
    nerve, eye = anatomy.organs[f"OpticNrv_{side}"], anatomy.organs[f"Eye_{side}"]
    assert ndi.label(nerve, np.ones((3, 3, 3)))[1] == 1
    near = ndi.binary_dilation(nerve, np.ones((3, 3, 3)))
    assert (near & eye).any()
    assert (near & anatomy.organs["OpticChiasm"]).any()
    sections = nerve.sum((0, 2))[np.flatnonzero(nerve.any((0, 2)))][2:-2]
    assert sections.min() >= 9  # of a caliber of 4 to 5 mm, though the label has a gap


def test_no_two_organs_share_a_voxel_and_left_lies_left(anatomy):
    assert np.sum(list(anatomy.organs.values()), 0).max() == 1
    for name in ("Eye", "OpticNrv", "Hippocampus"):
        left, right = (np.argwhere(anatomy.organs[f"{name}_{s}"])[:, 0].mean() for s in "LR")
        assert left < right


def test_training_labels_can_have_the_organs_of_planners(anatomy):
    """Prepared labels overlap the clinical organs no less than those of the label map, in one piece each."""
    table, labels = default_heads(), default_labels()
    source = relabel(head(), GRID, table, RULES)
    after, before = (prepare_head(m, GRID, table, labels) for m in (source, head()))
    parts = {
        "Brainstem": ["brainstem"],
        "OpticChiasm": ["optic chiasm"],
        "OpticNrv_L": ["left optic nerve"],
        "OpticNrv_R": ["right optic nerve"],
        "Eye_L": ["left eye tissue", "left eye fluid"],
        "Eye_R": ["right eye tissue", "right eye fluid"],
    }
    for organ, names in parts.items():
        index = [labels.structures[labels.l(name)].index for name in names]
        found, old = (np.isin(m, index) for m in (after, before))
        assert dice(found, anatomy.organs[organ]) > max(0.9, dice(old, anatomy.organs[organ]) - 0.01), organ
        assert ndi.label(found, np.ones((3, 3, 3)))[1] == 1, organ
    assert not np.isin(source, RULES["brainstem"]["source"])[~anatomy.organs["Brainstem"]].any()


def test_maps_that_cannot_be_used_are_refused():
    with pytest.raises(TumoarError, match="no voxel of Brainstem"):
        define_organs(np.where(head() == 16, 2, head()), GRID, default_heads(), RULES, name="x.nii.gz")
    grid = Grid(GRID.shape, np.diag([2.0, 2, 2, 1]))
    with pytest.raises(TumoarError, match="1 mm"):
        define_organs(head(), grid, default_heads(), RULES)


@pytest.mark.long
@pytest.mark.parametrize("number", ["10", "20", "06"])
def test_real_label_maps_have_the_volumes_of_experts(shared_data, number):
    """PDDCA: brainstem 19 to 36, chiasm 0.3 to 0.75, nerves 0.44 to 1.01; globes of 21 to 27 mm."""
    image, _ = reorient(read_nifti(shared_data / "heads" / f"head_{number}.nii.gz"))
    source = np.asarray(image.data).astype(np.int32)
    organs = define_organs(source, image.grid, default_heads(), RULES).organs
    ml = {name: mask.sum() / 1000 for name, mask in organs.items()}
    assert 19 < ml["Brainstem"] < 36
    assert ml["Brainstem"] > (source == 16).sum() / 1000
    assert 0.3 < ml["OpticChiasm"] < 0.75
    for side in "LR":
        assert 0.44 < ml[f"OpticNrv_{side}"] < 1.01
        assert 4.8 < ml[f"Eye_{side}"] < 10.3
