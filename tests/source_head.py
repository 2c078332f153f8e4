"""A small head drawn in the codes of source label maps, with known flaws."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.simulate.independent import Anatomy
from tumoar.train.clinical import clinical_rules, define_organs
from tumoar.train.head_table import default_heads

SHAPE = (96, 112, 80)
GRID = Grid(SHAPE, np.eye(4))
EYES = ((27, 88, 34), (69, 88, 34))
CHIASM = (48, 56, 36)


def ball(center, radius, shape=SHAPE):
    """Voxels within a radius; three radii make an ellipsoid."""
    radii = np.broadcast_to(radius, 3)
    return sum(((i - c) / r) ** 2 for i, c, r in zip(np.indices(shape, sparse=True), center, radii)) <= 1


def tube(points, radius):
    """Voxels within a radius of a line of points."""
    line = np.ones(SHAPE, bool)
    line[tuple(np.rint(points).astype(int).T)] = False
    return ndi.distance_transform_edt(line) <= radius


def head():
    """A head in the source's codes: nerves broken, speckle, a stray piece of brainstem, all else in order."""
    return _head().copy()


@cache
def _head():
    out = np.zeros(SHAPE, np.int32)
    out[ball((48, 54, 40), (46, 56, 39))] = 507
    out[ball((48, 38, 46), (40, 36, 30))] = 24
    out[ball((48, 38, 46), (38, 34, 28))] = 3
    out[ball((48, 38, 46), (30, 26, 20))] = 2
    out[ball((48, 34, 24), (8, 8, 12))] = 16
    out[ball((40, 40, 50), (5, 6, 5))] = 12
    out[ball((30, 36, 34), (4, 8, 4))] = 17
    out[ball((66, 36, 34), (4, 8, 4))] = 53
    out[ball(CHIASM, (7, 3, 2))] = 85
    out[60:62, 60:62, 60:62] = 16
    muscles, nerves = [], []
    for eye, sign in zip(EYES, (-1, 1)):
        out[ball(eye, 14) & (out == 0)] = 507
        t = np.linspace(0, 1, 60)[:, None]
        for side in ((9, 0, 0), (-9, 0, 0), (0, 0, 9), (0, 0, -9)):
            muscles.append(eye + np.array(side) * (1 - t) + t * np.array([-6 * sign, -22, 0]) - [0, 4, 0])
        broken = t[(t[:, 0] < 0.45) | (t[:, 0] > 0.62)]
        nerves.append((1 - broken) * (np.array(eye) - [0, 11, 0]) + broken * [48 + 5 * sign, 58, 36])
    out[tube(np.concatenate(muscles), 1.2)] = 508
    out[tube(np.concatenate(nerves), 1.3)] = 530
    for eye in EYES:
        out[ball(eye, 11)] = 506
    out[48, 48:52, 36] = 530
    speckle = np.random.default_rng(0).random(SHAPE) < 0.01
    out[speckle & ball((48, 38, 46), (36, 32, 26))] = 0
    return out


def drawn_anatomy():
    """The head with its clinical organs."""
    found = define_organs(head(), GRID, default_heads(), clinical_rules())
    return Anatomy(found.source, GRID, found.organs, found.globes, found.courses)
