"""Which fluid is a cavity, and which enhancement follows its wall."""

from __future__ import annotations

import numpy as np

from tumoar.result.cavity import find_linear
from tumoar.result.parts import find_closed

SHAPE = (60, 60, 60)
SPACING = np.ones(3)


def ball(center, radius):
    return np.linalg.norm(np.stack(np.indices(SHAPE), -1) - np.array(center), axis=-1) <= radius


BRAIN = ball((30, 30, 30), 27)


def test_a_cavity_reaches_the_surface_and_is_wide_enough():
    opened = ball((48, 30, 30), 8) & BRAIN
    deep = ball((22, 30, 30), 8)
    slit = BRAIN & (np.indices(SHAPE)[1] == 10) & (np.indices(SHAPE)[0] < 40)
    speck = ball((30, 30, 54), 2) & BRAIN
    closed = find_closed(opened | deep | slit | speck, BRAIN, SPACING, 0.001)
    assert not (closed & opened).any()
    assert np.array_equal(closed, deep | slit | speck)
    assert not find_closed(np.zeros(SHAPE, bool), BRAIN, SPACING, 0.001).any()


def test_thin_enhancement_along_the_wall_is_told_from_a_nodule():
    cavity = ball((40, 30, 30), 9)
    wall = ball((40, 30, 30), 11) & ~cavity & (np.indices(SHAPE)[0] < 38)
    nodule = ball((40, 44, 30), 4) & ~ball((40, 30, 30), 12)
    far = ball((12, 30, 30), 2)
    found = find_linear(wall | nodule | far, cavity, SPACING)
    assert np.array_equal(found, wall)
    assert not find_linear(wall, np.zeros(SHAPE, bool), SPACING).any()
