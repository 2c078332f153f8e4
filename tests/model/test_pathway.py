"""π given courses: sums to one, connected chains on any voxels, sides apart, nothing elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pathway_head as head
import pytest
from scipy import ndimage

from tumoar.geometry.image import Grid
from tumoar.model.pathway import (
    Course,
    assign_shares,
    constrain,
    default_pathway,
    find_nearest,
    trace,
    tube_prior,
)
from tumoar.vocabulary.labels import default_labels

TABLE = default_pathway()
LABELS = default_labels()
AIR = LABELS.l("background")
SIX_AND_CORNERS = np.ones((3, 3, 3))


def courses(bend=(2.0, -1.0)):
    """Both courses of the head of the tests, as they would be estimated."""
    out = []
    for side in head.SIDES:
        points = head.grid().index(head.course(side, bend))[::4]
        l, end = LABELS.l(f"{side} optic nerve"), LABELS.l("optic chiasm")
        n = len(points)
        radius = np.interp(np.arange(n) / n, (0.25, 0.85), np.array(head.CALIBER) / 2)
        out.append(Course(l, end, points, radius, n // 4, round(0.8 * n)))
    return tuple(out)


def some_pi(seed=0):
    rng = np.random.default_rng(seed)
    pi = rng.gamma(0.3, size=(*head.SHAPE, LABELS.K)).astype(np.float32)
    return pi / pi.sum(-1, keepdims=True)


def no_tumor():
    return np.zeros(head.SHAPE, bool)


def conditioned(pi, found, keeps=None):
    out = pi.copy()
    constrain(out, found, head.grid(), AIR, TABLE, no_tumor() if keeps is None else keeps)
    return out


def test_the_table_names_structures_of_the_package():
    names = {s.name for s in LABELS.structures}
    assert all({c.structure, c.end, *c.begin} <= names for c in TABLE.courses)
    assert [c.structure for c in TABLE.select(head.atlas())] == ["left optic nerve", "right optic nerve"]


def test_an_atlas_without_a_structure_has_no_course():
    atlas = head.atlas()
    alpha = atlas.alpha.copy()
    nerve = LABELS.l("left optic nerve")
    alpha[:, AIR] += alpha[:, nerve]
    alpha[:, nerve] = 0
    assert [c.structure for c in TABLE.select(replace(atlas, alpha=alpha))] == ["right optic nerve"]


def test_pi_sums_to_one_and_the_structure_is_in_its_tube_alone():
    pi, found = some_pi(), courses()
    out = conditioned(pi, found)
    np.testing.assert_allclose(out.sum(-1), 1, atol=1e-5)
    assert (out >= 0).all()
    for course in found:
        box, nearest, distance = find_nearest(course.points, 4.0, head.grid())
        expected = np.zeros(head.SHAPE)
        of = course.structure()[nearest] == course.l
        expected[box] = np.where(of, tube_prior(course.radius[nearest], distance, TABLE), 0)
        np.testing.assert_allclose(out[..., course.l], expected, atol=1e-6)
        assert {0.0, 1.0} <= set(np.unique(expected))


def test_other_structures_keep_their_proportions():
    pi, found = some_pi(), courses()
    out = conditioned(pi, found)
    special = [found[0].l, found[1].l, found[0].end]
    others = np.setdiff1d(np.arange(LABELS.K), special)
    some = out[..., others].sum(-1) > 1e-3
    a, b = (v[some][:, others].astype(float) for v in (pi, out))
    np.testing.assert_allclose(a / a.sum(1, keepdims=True), b / b.sum(1, keepdims=True), atol=1e-4)


def test_mass_without_alternatives_becomes_background():
    pi = np.zeros((1, LABELS.K), np.float32)
    pi[0, 8] = 1
    out = assign_shares(pi, [8], np.zeros((1, 1), np.float32), AIR)
    assert out[0, AIR] == 1
    assert out.sum() == 1


def test_the_caliber_of_the_tube_is_that_of_the_table():
    """Expected volume of a straight, oblique tube, and the volume where it is more likely than not."""
    points = np.linspace([17.0, 5.0, 16.0], [25.0, 65.0, 22.0], 120)
    course = Course(9, 8, points, np.full(120, 2.2), 0, 120)
    pi = np.zeros((*head.SHAPE, LABELS.K), np.float32)
    pi[..., AIR] = 1
    constrain(pi, [course], head.grid(), AIR, TABLE, no_tumor())
    area = float(pi[:, 20:50, :, 9].sum((0, 2)).mean())
    slant = np.linalg.norm(points[-1] - points[0]) / 60
    assert area == pytest.approx(np.pi * 2.2**2 * slant, rel=0.03)
    likely = float((pi[:, 20:50, :, 9] > 0.5).sum((0, 2)).mean())
    assert 0.85 * area < likely < area


def test_sides_do_not_touch():
    out = conditioned(some_pi(), courses())
    left, right = (out[..., c.l] > 0 for c in courses())
    assert not (ndimage.binary_dilation(left, SIX_AND_CORNERS) & right).any()


def test_tumor_keeps_its_prior():
    pi, found = some_pi(), courses()
    keeps = no_tumor()
    keeps[:, 35:50] = True
    out = conditioned(pi, found, keeps)
    assert np.array_equal(out[keeps], pi[keeps])
    assert not np.array_equal(out[~keeps], pi[~keeps])


def test_mirrored_courses_give_the_mirrored_prior():
    pi, found = some_pi(), courses()
    mirror = LABELS.mirrored
    flipped = tuple(
        replace(c, l=int(mirror[c.l]), points=np.array([head.SHAPE[0] - 1, 0, 0]) + c.points * [-1, 1, 1])
        for c in found
    )
    out = conditioned(pi, found)
    other = conditioned(np.ascontiguousarray(pi[::-1][..., mirror]), flipped)
    np.testing.assert_allclose(other[::-1][..., mirror], out, atol=2e-6)


def random_grid(rng):
    """Voxels of 0.4 to 7 mm, turned about all axes, in any order and direction."""
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    size = rng.uniform(0.4, 3, 3)
    size[rng.integers(3)] = rng.uniform(3, 7)
    affine = np.eye(4)
    affine[:3, :3] = turn * size
    middle = head.grid().world((np.array(head.SHAPE) - 1) / 2)
    shape = tuple(int(n) for n in np.ceil(120 / size))
    affine[:3, 3] = middle - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return Grid(shape, affine)


@pytest.mark.parametrize("seed", range(12))
def test_chains_are_connected_on_any_voxels(seed):
    """26 neighbors; the structure, and all courses with the end that they share."""
    onto = random_grid(np.random.default_rng(seed))
    found = courses((3.0, -2.5))
    chains = trace(found, onto, onto.inverse @ head.grid().affine)
    for course in found:
        assert chains[course.l].any()
        assert ndimage.label(chains[course.l], SIX_AND_CORNERS)[1] == 1
    every = np.logical_or.reduce(list(chains.values()))
    assert ndimage.label(every, SIX_AND_CORNERS)[1] == 1


def test_voxels_of_the_chain_are_certain():
    pi, found = some_pi(), courses()
    out = conditioned(pi, found)
    chains = trace(found, head.grid())
    for course in found:
        # At the ends of the structure, a voxel of the chain may be nearest to what comes before or after.
        assert (out[chains[course.l], course.l] == 1).mean() > 0.95
