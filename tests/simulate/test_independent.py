"""The independent simulator: what scans conserve, where things lie, and the fine anatomy of a drawn head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage as ndi
from source_head import drawn_anatomy

from tumoar.geometry.image import Grid
from tumoar.geometry.resample import resample
from tumoar.simulate.independent import Scan, draw_patient, motion, scan
from tumoar.simulate.independent.head import ZOOM, double, random_field, smooth_labels
from tumoar.simulate.independent.scan import (
    AXES,
    GAIN,
    add_metal,
    integrate,
    make_grid,
    sensitivity,
    slice_profile,
)
from tumoar.simulate.independent.sequences import relaxation_table
from tumoar.simulate.independent.tumor import displacement, grow

TABLE = relaxation_table()


@pytest.fixture(scope="module")
def anatomy():
    return drawn_anatomy()


@pytest.fixture(scope="module")
def patient(anatomy):
    return draw_patient(anatomy, 1.0, np.random.default_rng(3))


# ---- slices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 2, 4, 6, 10])
def test_slices_share_every_sample_completely(samples):
    profile = slice_profile(samples)
    total = np.zeros(20 * samples)
    for first in range(0, len(total) - len(profile), samples):
        total[first : first + len(profile)] += profile
    middle = total[3 * samples : -4 * samples]
    np.testing.assert_allclose(middle, 1 / samples)
    assert len(profile) % 2 == samples % 2
    np.testing.assert_allclose(profile, profile[::-1])


def blob():
    """A smooth blob off center at 0.5 mm, on a grid whose world begins elsewhere."""
    grid = Grid((60, 72, 66), np.array([[0.5, 0, 0, -7], [0, 0.5, 0, 11], [0, 0, 0.5, 4], [0, 0, 0, 1]]))
    index = np.indices(grid.shape)
    square = sum((i - c) ** 2 for i, c in zip(index, (26, 40, 31)))
    return np.exp(-square / (2 * 5.0**2)).astype(np.float32), grid


def center_of(values, grid):
    return grid.world(np.array(ndi.center_of_mass(values)))


@pytest.mark.parametrize("orientation", list(AXES))
@pytest.mark.parametrize("thickness", [1.0, 2.0, 3.0, 5.0])
def test_thick_slices_of_any_orientation_conserve_mass_and_place(orientation, thickness):
    values, grid = blob()
    onto = make_grid(grid, Scan("T1", thickness=thickness, orientation=orientation))
    found = integrate(values, grid, onto, np.eye(4), thickness, 0.0)
    assert onto.spacing.tolist() == [1, 1, thickness]
    assert found.sum() * onto.voxel_volume == pytest.approx(values.sum() * grid.voxel_volume, rel=0.01)
    np.testing.assert_allclose(center_of(found, onto), center_of(values, grid), atol=0.05)


def test_a_turned_head_lies_where_its_motion_says():
    values, grid = blob()
    how = Scan("T1", turn=(0, 0, 12), shift=(1.5, 0, -2), thickness=2.0)
    onto, to_head = make_grid(grid, how), motion(grid, how)
    found = integrate(values, grid, onto, to_head, 2.0, 0.0)
    place = to_head @ np.r_[center_of(found, onto), 1]
    np.testing.assert_allclose(place[:3], center_of(values, grid), atol=0.05)
    middle = np.r_[grid.world((np.array(grid.shape) - 1) / 2), 1]
    # Turned to the left about the upward axis: what lies to the front moves to the left.
    ahead = middle + np.array([0, 10, 0, 0])
    front = np.linalg.inv(motion(grid, replace(how, shift=(0, 0, 0)))) @ ahead
    np.testing.assert_allclose(
        (front - middle)[:3], [-10 * np.sin(np.pi / 15), 10 * np.cos(np.pi / 15), 0], atol=1e-9
    )


# ---- scanner -----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_images_and_a_contrast_more_does_not_change_the_others(patient):
    one = scan(patient, [Scan("T1c", thickness=3.0)], np.random.default_rng(5))
    two = scan(patient, [Scan("T1c", thickness=3.0), Scan("CT", thickness=5.0)], np.random.default_rng(5))
    np.testing.assert_array_equal(one["T1c"].data, two["T1c"].data)
    other = scan(patient, [Scan("T1c", thickness=3.0)], np.random.default_rng(6))
    assert (one["T1c"].data != other["T1c"].data).mean() > 0.5
    assert two["CT"].data.min() < -950


def test_air_is_rician(patient):
    how = Scan("T2", thickness=3.0, noise=0.04)
    data = scan(patient, [how], np.random.default_rng(5))["T2"].data
    corner = data[:4, :4].astype(float)
    assert corner.mean() == pytest.approx(GAIN * 0.04 * np.sqrt(np.pi / 2), rel=0.15)


def test_coils_are_smooth_positive_and_off_without_shading():
    grid = Grid((50, 60, 40), np.diag([3.0, 3.0, 4.0, 1.0]))
    field = sensitivity(grid, 0.5, np.random.default_rng(0))
    assert field.min() > 0
    assert field.mean() == pytest.approx(1, abs=1e-5)
    assert max(np.abs(np.diff(field, axis=a)).max() for a in range(3)) < 0.15
    assert field[0, 30, 20] > field[25, 30, 20]  # brighter near the coils
    np.testing.assert_allclose(sensitivity(grid, 0.0, np.random.default_rng(0)), 1, atol=1e-6)


def test_metal_makes_streaks_in_its_planes_only():
    grid = Grid((60, 70, 40), np.diag([2.0, 2.0, 2.0, 1.0]))
    data = np.full(grid.shape, 40.0, np.float32)
    data[10:50, 10:60, 2:38] = 800.0
    streaked = add_metal(data, grid, np.random.default_rng(1))
    assert streaked.max() == 3071
    changed = np.abs(streaked - data) > 5
    assert changed.any((0, 1))[:20].any()
    assert not changed[:, :, 30:].any()


# ---- anatomy -----------------------------------------------------------------------------------------------


def is_(patient, *names):
    return np.isin(patient.head.tissue, [TABLE.index(name) for name in names])


def test_labels_are_drawn_finer_in_place():
    labels = np.zeros((20, 24, 16), np.uint8)
    labels[5:12, 6:18, 4:12] = 3
    fine = smooth_labels(labels)
    assert fine.shape == (40, 48, 32)
    assert (fine == 3).sum() / 8 == pytest.approx((labels == 3).sum(), rel=0.05)
    np.testing.assert_allclose(
        ndi.center_of_mass(fine == 3), np.array(ndi.center_of_mass(labels == 3)) * ZOOM + 0.5, atol=0.1
    )
    ramp = np.arange(8, dtype=np.float32)[:, None, None] * np.ones((8, 4, 4), np.float32)
    np.testing.assert_allclose(double(ramp)[1:-1, 0, 0], np.arange(0.25, 7, 0.5))


def test_random_fields_have_unit_variance_and_their_width():
    field = random_field((90, 90, 90), 6.0, np.random.default_rng(0))
    assert field.std() == pytest.approx(1, abs=0.1)
    near = np.corrcoef(field[:-1].ravel(), field[1:].ravel())[0, 1]
    far = np.corrcoef(field[:-18].ravel(), field[18:].ravel())[0, 1]
    assert near > 0.9
    assert abs(far) < 0.15


def test_globes_have_their_layers_and_lie_on_their_sides(patient, anatomy):
    start = np.array(patient.head.start)
    for side, globe in anatomy.globes.items():
        center = (globe.center - start) * ZOOM + (ZOOM - 1) / 2
        i, j, k = np.rint(center).astype(int)
        ahead = patient.head.tissue[i, j:, k]
        names = [TABLE.names[t] for t in ahead[np.r_[True, np.diff(ahead) != 0]]]
        assert names[:4] == ["vitreous", "lens", "vitreous", "sclera"]
        world = patient.head.grid.world([i, j, k])
        middle = patient.head.grid.world((np.array(patient.head.grid.shape) - 1) / 2)
        assert (world[0] < middle[0]) == (side == "L")


def test_nerves_run_without_a_gap_from_globe_to_chiasm_in_fluid(patient, anatomy):
    nerve = is_(patient, "optic nerve")
    pieces, _ = ndi.label(nerve, np.ones((3, 3, 3)))
    start = np.array(patient.head.start)
    found = set()
    for course in anatomy.courses.values():
        points = np.rint((course.points - start) * ZOOM + 0.5).astype(int)
        on_the_way = pieces[tuple(points[5:-2].T)]
        assert (on_the_way > 0).all()
        found |= set(on_the_way.tolist())
        middle = points[len(points) // 4]
        around = is_(patient, "CSF")[tuple(slice(p - 6, p + 7) for p in middle)]
        assert around.any()
    assert len(found) == 1


def test_truth_and_images_agree_on_places_and_sides(patient):
    """Vitreous is bright on T2: also where the truth of a turned head says that the eyes are."""
    how = Scan("T2", turn=(3.0, -5.0, 8.0), noise=0.01, shading=0.0)
    image = scan(patient, [how], np.random.default_rng(1))["T2"]
    to_head = motion(patient.head.grid, how)
    for side in "LR":
        eye = patient.organs[f"Eye_{side}"].astype(np.float32)
        here = resample(eye, patient.grid, image.grid, to_head) > 0.9
        assert here.any()
        assert np.median(image.data[here]) > 2.5 * GAIN


# ---- tumor -------------------------------------------------------------------------------------------------


def test_a_tumor_lies_in_the_brain_and_its_edema_fades():
    brain = np.zeros((80, 80, 80), bool)
    brain[4:76, 4:76, 4:76] = True
    fluid = np.zeros_like(brain)
    fluid[40:44] = True
    growth = grow(np.array([28.0, 40, 40]), 8.0, brain, brain & ~fluid, fluid, np.random.default_rng(2))
    assert (growth.z & ~brain).sum() == 0
    assert (growth.edema[fluid] == 0).all()
    assert growth.y[28, 40, 40]
    assert 0.6 < growth.y.sum() / (4 / 3 * np.pi * 8**3) < 1.6
    distance = ndi.distance_transform_edt(~growth.y)
    rings = [growth.edema[(distance > a) & (distance <= a + 3) & ~fluid].mean() for a in (0.5, 5, 12, 25)]
    assert rings == sorted(rings, reverse=True)
    assert rings[-1] < 0.05


def test_mass_effect_pushes_away_and_holds_the_edge_of_the_brain():
    brain = np.zeros((60, 60, 60), bool)
    brain[2:58, 2:58, 2:58] = True
    center = np.array([30.0, 30, 30])
    came_from = displacement(brain.shape, center, 8.0, brain)
    assert 1.5 < 40 - came_from[0, 40, 30, 30] < 3.0  # what is at 40 was nearer to the center
    assert came_from[0, 20, 30, 30] > 20
    np.testing.assert_allclose(came_from[:, 1, 30, 30], [1, 30, 30])


def test_no_tumor(anatomy):
    healthy = draw_patient(anatomy, 0.0, np.random.default_rng(3))
    assert not healthy.tumor.z.any()
    np.testing.assert_array_equal(healthy.organs["Brainstem"], anatomy.organs["Brainstem"])
