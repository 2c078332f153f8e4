"""Outlines of tubes are connected on the voxels of any input, and keep their volume."""

from __future__ import annotations

import numpy as np
import pathway_head as head
import pytest
from scipy import ndimage
from scipy.spatial import cKDTree

from tumoar.geometry.image import Grid
from tumoar.model.pathway import Course, trace
from tumoar.result.native import vote_on_grid
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
NERVE, CHIASM, FAT = (LABELS.l(name) for name in ("left optic nerve", "optic chiasm", "eye socket fat"))
CORNERS = np.ones((3, 3, 3))


def course(bend):
    points = head.grid().index(head.course("left", bend))[::4]
    n = len(points)
    return Course(NERVE, CHIASM, points, np.full(n, 2.15), n // 4, round(0.8 * n))


def shares_on(of, onto, to_case, rng):
    """Shares of a structure in voxels: what its tube has of them, and votes for specks and against parts."""
    steps = [
        np.linspace(-0.5, 0.5, 2 * n + 1)[1::2]
        for n in np.maximum(1, np.rint(onto.spacing / 0.7).astype(int))
    ]
    points = of.points[of.first : of.last]
    tree, out = cKDTree(points), np.zeros(onto.shape)
    index = np.moveaxis(np.indices(onto.shape), 0, -1).astype(float)
    for i in steps[0]:
        for j in steps[1]:
            for k in steps[2]:
                at = np.add(index, [i, j, k]) @ to_case[:3, :3].T + to_case[:3, 3]
                out += np.isfinite(tree.query(at.reshape(-1, 3), distance_upper_bound=2.15)[0]).reshape(
                    out.shape
                )
    out /= np.prod([len(s) for s in steps])
    noisy = out * rng.uniform(0.3, 1, out.shape)
    noisy[rng.random(out.shape) < 2e-4] = 0.9
    return noisy.astype(np.float32)


@pytest.mark.parametrize(
    "size", [(1.0, 1.0, 1.0), (0.9, 0.9, 3.0), (0.9, 5.0, 0.9), (6.5, 0.9, 0.9), (2, 2, 2)], ids=str
)
def test_the_outline_is_one_part(size):
    rng = np.random.default_rng(round(10 * sum(size)))
    one = course((2.0, -2.0))
    affine = np.diag([*size, 1.0])
    affine[:3, 3] = head.grid().affine[:3, 3]
    onto = Grid(tuple(int(n) for n in np.ceil(np.array(head.SHAPE) / size)), affine)
    noisy = shares_on(one, onto, head.grid().inverse @ onto.affine, rng)
    chains = trace([one], onto, onto.inverse @ head.grid().affine)
    none = np.zeros(onto.shape, bool)
    shares = [(FAT, 1 - noisy), (NERVE, noisy)]
    plain = vote_on_grid(LABELS, onto, shares, none, none).l == NERVE
    found = vote_on_grid(LABELS, onto, shares, none, none, certain=chains).l == NERVE
    assert ndimage.label(plain, CORNERS)[1] > 1
    assert ndimage.label(found, CORNERS)[1] == 1
    assert found[chains[NERVE]].all()
    of_samples = float(noisy.sum())
    assert found.sum() <= max(1.1 * of_samples, chains[NERVE].sum() + 1)


def test_tumor_covers_the_chain():
    one = course((0.0, 0.0))
    onto = head.grid()
    chains = trace([one], onto)
    tumor = np.zeros(onto.shape, bool)
    tumor[:, 30:40] = True
    gray = LABELS.l("gray matter")
    share = np.where(chains[NERVE], 1, 0).astype(np.float32)
    shares = [(gray, 1 - share), (NERVE, share)]
    votes = vote_on_grid(LABELS, onto, shares, tumor, np.zeros_like(tumor), certain=chains)
    assert not (votes.l == NERVE)[tumor].any()
    assert (votes.l == NERVE)[chains[NERVE] & ~tumor].all()
