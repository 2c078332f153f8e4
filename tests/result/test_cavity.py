"""Which fluid is a cavity, and which enhancement follows its wall."""

from __future__ import annotations

import numpy as np

from tumoar.result.cavity import LINEAR, find_linear
from tumoar.result.parts import find_closed, find_film

SHAPE = (60, 60, 60)
SPACING = np.ones(3)


def ball(center, radius):
    return np.linalg.norm(np.stack(np.indices(SHAPE), -1) - np.array(center), axis=-1) <= radius


BRAIN = ball((30, 30, 30), 27)
NOWHERE = np.zeros(SHAPE, bool)


def test_a_cavity_reaches_the_surface_and_is_wide_enough():
    opened = ball((48, 30, 30), 8) & BRAIN
    deep = ball((22, 30, 30), 8)
    slit = BRAIN & (np.indices(SHAPE)[1] == 10) & (np.indices(SHAPE)[0] < 40)
    speck = ball((30, 30, 54), 2) & BRAIN
    closed = find_closed(opened | deep | slit | speck, BRAIN, NOWHERE, SPACING, 0.001)
    assert not (closed & opened).any()
    assert np.array_equal(closed, deep | slit | speck)
    assert not find_closed(np.zeros(SHAPE, bool), BRAIN, NOWHERE, SPACING, 0.001).any()


def test_a_cavity_whose_way_has_closed_is_one_where_the_images_show_fluid_and_not_necrosis():
    deep, other = ball((22, 30, 30), 8), ball((42, 30, 30), 6)
    slit = BRAIN & (np.indices(SHAPE)[1] == 10) & (np.indices(SHAPE)[0] < 40) & (np.indices(SHAPE)[0] > 20)
    most, some = deep & (np.indices(SHAPE)[1] > 27), other & (np.indices(SHAPE)[1] > 33)
    closed = find_closed(deep | other | slit, BRAIN, most | some | slit, SPACING, 0.001)
    assert np.array_equal(closed, other | slit)


def test_air_above_a_level_of_fluid_belongs_to_the_cavity():
    """Air and fluid are two voxels apart, and only one of them comes near the surface."""
    y = np.indices(SHAPE)[1]
    cavity = ball((30, 44, 30), 11) & BRAIN
    level = (y == 39) | (y == 40)
    assert not find_closed(cavity & ~level, BRAIN, NOWHERE, SPACING, 0.001).any()
    apart = (y >= 37) & (y <= 42)
    assert find_closed(cavity & ~apart, BRAIN, NOWHERE, SPACING, 0.001)[30, 35, 30]


def test_thin_enhancement_along_the_wall_is_told_from_a_nodule_on_it():
    cavity = ball((30, 30, 30), 12)
    shell = ball((30, 30, 30), 14) & ~cavity
    nodule = ball((30, 45, 30), 5) & ~cavity
    far = ball((8, 30, 30), 2)
    found = find_linear(shell | nodule | far, cavity, SPACING)
    near = ball((30, 45, 30), 8)
    assert np.array_equal(found & ~near, shell & ~near)
    assert not (found & ball((30, 45, 30), 3)).any()
    assert not find_linear(shell, np.zeros(SHAPE, bool), SPACING).any()
    assert not find_linear(nodule, cavity, SPACING).any()  # its edges are thin, but belong to it


def test_enhancement_of_five_millimeters_or_more_is_not_thin():
    x = np.indices((40, 13, 13))[0]
    cavity = x < 20
    for width in (1, 3, 4, 5, 7):
        found = find_linear((x >= 20) & (x < 20 + width), cavity, SPACING)
        assert found[:, 6, 6].sum() == (width if width < LINEAR else 0)


def test_a_film_on_the_wall_counts_as_cavity_but_a_rim_that_enhances_or_a_nodule_does_not():
    cavity = ball((30, 30, 30), 10)
    shell = ball((30, 30, 30), 11.5) & ~cavity
    rim = shell & (np.indices(SHAPE)[0] > 36)
    nodule = ball((30, 45, 30), 5) & ~cavity
    far = ball((30, 30, 52), 1)
    residual = shell | nodule | far
    film = find_film(residual, cavity, rim, SPACING)
    assert not (film & (rim | far)).any()
    assert not (film & ball((30, 45, 30), 3)).any()
    assert (film & shell).sum() > 0.9 * (shell & ~rim & ~nodule).sum()
    assert not find_film(residual, cavity, np.ones(SHAPE, bool), SPACING).any()
    assert not find_film(residual, np.zeros(SHAPE, bool), rim, SPACING).any()


def test_how_thick_a_film_is_hardly_depends_on_the_voxels():
    """A layer on a flat wall, of 2 and of 4 mm; 2 mm are one voxel of the coarsest."""
    for step, widths in ((0.5, (2.0, 4.0)), (1.0, (2.0, 4.0)), (2.0, (2.0, 6.0))):
        x = step * np.indices((int(40 / step), 13, 13))[0]
        cavity, spacing = x < 20, np.full(3, step)
        for width, is_film in zip(widths, (True, False)):
            layer = (x >= 20) & (x < 20 + width)
            found = find_film(layer, cavity, np.zeros(x.shape, bool), spacing)
            middle = layer[:, 6, 6]
            assert (found[:, 6, 6] == (middle & is_film)).all()
