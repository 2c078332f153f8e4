"""The atlas finds the head, whatever the contrast and the header, and says so when there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from heads import analytic_head
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Case, Grid, Input, is_valid, transform_intensities
from tumoar.placement import affine
from tumoar.placement.affine import find_placement, generators, rotation_and_scales
from tumoar.placement.template import fit_landmarks, landmarks, make_template
from tumoar.simulate import Acquisition, draw_blob, draw_place, simulate
from tumoar.simulate.patient import tissue_map
from tumoar.simulate.tissue import default_tissues
from tumoar.train.head_table import default_heads
from tumoar.train.surroundings import average_heads
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.errors import FitError
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
RIGHT = 2.5
"""mm and degrees within which a placement is right."""
STEP = 4
"""mm of the simulated images; blown up to the 1 mm of a case."""


@pytest.fixture(scope="module")
def head():
    return analytic_head(float(STEP))


@pytest.fixture(scope="module")
def templates():
    """Templates of the same anatomy at another voxel size, with surroundings averaged by our own code."""
    label_map, grid = analytic_head(2.0)
    tissues = default_tissues()
    tissue = tissue_map(label_map, grid, LABELS, tissues)
    codes = np.zeros(len(tissues.names), np.int16)
    for name, of in tissues.source.items():
        codes[tissues.index(name)] = of[0]
    codes[tissues.index("fat")] = tissues.source["skin"][0]
    surroundings = average_heads([(label_map, codes[tissue], grid)], LABELS, default_heads())
    coarse, coarse_grid = analytic_head(3.0)
    pi = (coarse[..., None] == LABELS.indices).astype(np.float32)
    return {s: make_template(pi, coarse_grid, LABELS, surroundings, skull_stripped=s) for s in (False, True)}


def as_case(images, skull_stripped):
    """Images of STEP mm as a case of 1 mm, without interpolation."""
    contrasts = tuple(find_contrast(name) for name in images)
    D = []
    for contrast, image in zip(contrasts, images.values()):
        values = image.data.astype(np.float32)
        ok = is_valid(values, contrast)
        D.append(np.where(ok, transform_intensities(np.where(ok, values, 1), contrast), np.nan))
        grid = image.grid
    D = np.stack(D).repeat(STEP, 1).repeat(STEP, 2).repeat(STEP, 3)
    matrix = grid.affine.copy()
    matrix[:3, :3] /= STEP
    matrix[:3, 3] = grid.world([-(STEP - 1) / (2 * STEP)] * 3)
    fine = Grid(D.shape[1:], matrix)
    given = tuple(Input(name, "simulated", fine, "RAS", np.eye(4)) for name in images)
    return Case(D.astype(np.float32), contrasts, fine, given[0].name, given, skull_stripped)


def scan(head, names, *, stripped=False, tumor=None, seed=0):
    how = [Acquisition(name, (STEP,) * 3) for name in names]
    images, _ = simulate(*head, tumor, how, LABELS, np.random.default_rng(seed), skull_stripped=stripped)
    return as_case(images, stripped)


def moved(case, motion):
    return replace(case, grid=Grid(case.grid.shape, motion @ case.grid.affine))


def motion(degrees, shift):
    out = np.eye(4)
    out[:3, :3] = Rotation.from_rotvec(degrees, degrees=True).as_matrix()
    out[:3, 3] = shift
    return out


def errors(matrix, truth):
    """mm at points around the brain, and degrees."""
    points = 70 * np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
    ends = [points @ m[:3, :3].T + m[:3, 3] for m in (matrix, truth)]
    turn = rotation_and_scales(matrix)[0] @ rotation_and_scales(truth)[0].T
    return (
        np.linalg.norm(ends[0] - ends[1], axis=1).mean(),
        np.degrees(Rotation.from_matrix(turn).magnitude()),
    )


@pytest.fixture(scope="module")
def t1(head):
    return scan(head, ["T1"])


@pytest.mark.parametrize(
    ("names", "stripped"),
    [
        (["CT"], False),
        pytest.param(["T1c", "T2"], True, marks=pytest.mark.slow),
        pytest.param(["T1"], False, marks=pytest.mark.long),
        pytest.param(["FLAIR"], False, marks=pytest.mark.long),
        pytest.param(["T1"], True, marks=pytest.mark.long),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, list) else ("stripped" if v else "whole"),
)
def test_the_head_is_found_wherever_the_header_puts_it(head, templates, names, stripped):
    case = scan(head, names, stripped=stripped)
    truth = motion([12, -17, 9], [35, -40, 28])
    result = find_placement(moved(case, truth), templates[stripped])
    assert result.failures == ()
    mm, degrees = errors(result.matrix, truth)
    assert mm < RIGHT
    assert degrees < RIGHT


def hardened(case, *, range_=0.0, cleared=False):
    """The case with a coil `exp(range_)` times as sensitive below as above, and with air set to nothing."""
    D = case.D + np.float32(range_) * np.linspace(0.5, -0.5, case.grid.shape[2], dtype=np.float32)
    if cleared:
        air = ndi.gaussian_filter(case.D[0], 3) < np.quantile(case.D, 0.9) - 2
        outside, _ = ndi.label(air)
        D = np.where(outside == outside[0, 0, -1], np.float32(np.nan), D)
    return replace(case, D=D.astype(np.float32))


@pytest.mark.parametrize(
    ("range_", "cleared"),
    [
        pytest.param(2.0, True, marks=pytest.mark.slow),
        pytest.param(2.0, False, marks=pytest.mark.long),
        pytest.param(0.0, True, marks=pytest.mark.long),
    ],
)
def test_a_fading_coil_and_cleared_air_do_not_lead_astray(t1, templates, range_, cleared):
    truth = motion([20, 5, -5], [35, -40, 28])
    result = find_placement(moved(hardened(t1, range_=range_, cleared=cleared), truth), templates[False])
    assert result.failures == ()
    mm, degrees = errors(result.matrix, truth)
    assert mm < RIGHT
    assert degrees < RIGHT


@pytest.mark.long
def test_a_large_tumor_does_not_lead_astray(head, templates):
    rng = np.random.default_rng(2)
    tumor = draw_place(draw_blob(rng, core_ml=80, spacing=float(STEP)), head[0], LABELS, rng)
    case = scan(head, ["T1c", "FLAIR"], tumor=tumor)
    mm, degrees = errors(find_placement(case, templates[False]).matrix, np.eye(4))
    assert mm < RIGHT
    assert degrees < RIGHT


@pytest.mark.long
def test_placement_follows_a_shifted_world_and_ignores_intensity_scale(t1, templates):
    """The first exactly, since no coordinate enters that depends on the origin of the world.

    Brightness only to a tenth of a voxel, the least that could matter to the mesh that starts from here:
    adding to the logs rounds them anew, which takes samples over the edges of bins, and on another path
    refinement stops at another kink of a template that is linear piece by piece.
    """
    here = find_placement(t1, templates[False])
    shift = motion([0, 0, 0], [64.0, -128.0, 32.0])
    there = find_placement(moved(t1, shift), templates[False])
    assert errors(there.matrix, shift @ here.matrix)[0] < 1e-6
    brighter = find_placement(replace(t1, D=t1.D + np.float32(8 * np.log(2.0))), templates[False])
    assert errors(brighter.matrix, here.matrix)[0] < 0.1


@pytest.mark.long
@pytest.mark.parametrize("axes", [(2, 3), (1, 3)])
def test_a_head_upside_down_is_refused(t1, templates, axes):
    failures = find_placement(replace(t1, D=np.flip(t1.D, axes)), templates[False]).failures
    assert any("turned" in sentence for sentence in failures)


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.55, 1.6])
def test_a_head_of_impossible_size_is_refused(t1, templates, scale):
    size = [max(1, round(n * scale)) for n in t1.grid.shape]
    D = ndi.zoom(t1.D[0], [s / n for s, n in zip(size, t1.grid.shape)], order=0)[None]
    case = replace(t1, D=D, grid=Grid(D.shape[1:], t1.grid.affine))
    assert find_placement(case, templates[False]).failures


def phantom(kind):
    """Images that are no head: noise, a ball, a bottle with rods."""
    rng = np.random.default_rng(4)
    shape = (160, 192, 160)
    where = np.indices(shape) - np.array(shape).reshape(3, 1, 1, 1) / 2
    values = rng.normal(0, 1, shape)
    if kind == "ball":
        values += 40 * (np.sqrt((where**2).sum(0)) < 70)
    if kind == "bottle":
        values += 40 * (np.hypot(where[0], where[1]) < 65) * (np.abs(where[2]) < 70)
        for x in (-30, 0, 30):
            values += 30 * (np.hypot(where[0] - x, where[1]) < 8)
    grid = Grid(shape, np.eye(4))
    contrast = find_contrast("T1")
    D = np.log(np.abs(values) + 0.1).astype(np.float32)[None]
    return Case(D, (contrast,), grid, "T1", (Input("T1", "phantom", grid, "RAS", np.eye(4)),), False)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ball", "noise", "bottle"])
def test_what_is_no_head_is_refused(templates, kind):
    assert find_placement(phantom(kind), templates[False]).failures


def test_a_refusal_has_a_sentence_and_its_exit_code(t1, templates, monkeypatch):
    monkeypatch.setattr(affine, "atlas_template", lambda *_, **__: templates[False])
    monkeypatch.setattr(affine, "default_surroundings", lambda: None)
    empty = replace(t1, D=np.full_like(t1.D, np.nan))
    with pytest.raises(FitError, match="no head") as refusal:
        affine.place_affine(empty, None)
    assert refusal.value.exit_code == 7
    assert affine.place_affine(t1, None).failures == ()


def test_a_template_is_a_probability_everywhere(templates):
    for template in templates.values():
        for level in template.levels:
            assert np.allclose(level.sum(-1), 1, atol=1e-5)
            assert level.min() > 0
        center = np.round(template.grid.index(template.center)).astype(int)
        assert template.levels[-1][tuple(center)][template.is_brain].sum() > 0.9
        assert template.levels[-1][0, 0, -1][template.is_brain].sum() < 0.1


def test_landmarks_follow_the_head(head):
    label_map, grid = head
    pi = (label_map[..., None] == LABELS.indices).astype(np.float32)
    truth = motion([10, 20, -5], [7, 8, 9])
    there = Grid(grid.shape, truth @ grid.affine)
    found = fit_landmarks(landmarks(pi, grid, LABELS), landmarks(pi, there, LABELS))
    assert np.allclose(found, truth, atol=1e-6)


def test_generators_move_points_at_the_radius_by_one_mm():
    center = np.array([3.0, 4.0, 5.0])
    for k, E in enumerate(generators(center)):
        at_center = E @ [*center, 1]
        assert np.allclose(at_center, [*np.eye(3)[k], 0] if k < 3 else 0)
        ends = (E @ np.column_stack([center + affine.RADIUS * np.eye(3), np.ones(3)]).T)[:3]
        assert np.linalg.norm(ends, axis=0).max() == pytest.approx(1)
