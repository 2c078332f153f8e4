"""Levels of a border: moving it changes volumes as geometry says."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.geometry.border import SOFTNESS, crossings, find_border, omitted

SPACINGS = [(1.0, 1.0, 1.0), (0.8, 0.8, 1.6)]


def ball(radius, spacing=(1.0, 1.0, 1.0), size=70.0, center=None):
    shape = tuple(int(size / s) for s in spacing)
    axes = np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing)], indexing="ij")
    center = (size / 2,) * 3 if center is None else center
    return sum((a - c) ** 2 for a, c in zip(axes, center)) <= radius**2


def border_of(mask, votes=None, spacing=(1.0, 1.0, 1.0), domain=None, softness=0.0):
    votes = mask.astype(np.float32) if votes is None else votes
    return find_border(mask, votes, np.ones_like(mask) if domain is None else domain, spacing, softness)


def tube(radius=1.3, spacing=(1.0, 1.0, 1.0)):
    """A thin structure that runs obliquely, like an optic nerve."""
    x, y, z = (a * s for a, s in zip(np.indices((60, 60, 40)), spacing))
    return ((x - 12 - 0.4 * y) ** 2 + (z - 20 - 3 * np.sin(y / 9)) ** 2 <= radius**2) & (y > 8) & (y < 45)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("a", [-5.0, -2.0, 0.0, 2.0, 5.0])
def test_a_ball_grows_by_its_displacement(a, spacing):
    border = border_of(ball(15, spacing), spacing=spacing)
    radius = (border.volume(a) * 1000 * 3 / 4 / np.pi) ** (1 / 3)
    assert radius == pytest.approx(15 + a, abs=max(spacing) / 2)


def test_volume_never_falls_and_zero_gives_the_outline():
    mask = ball(12) | ball(6, center=(55, 35, 35))
    border = border_of(mask)
    volumes = [border.volume(a) for a in np.linspace(-15, 15, 200)]
    assert (np.diff(volumes) >= 0).all()
    assert border.count(0) == mask.sum()
    assert np.array_equal(border.levels < 0, mask[border.box])


@pytest.mark.parametrize("a", [-3.0, -0.5, 0.0, 0.7, 4.0])
def test_displacement_and_count_undo_each_other(a):
    border = border_of(ball(13))
    count = border.count(a)
    assert border.count(border.displacement(count)) == count


def test_the_border_moves_faster_where_samples_disagree():
    mask = ball(12)
    cloud = ball(20) & (np.indices(mask.shape)[0] > 35)
    votes = np.where(mask, 1, 0.3 * cloud).astype(np.float32)
    levels, plain = border_of(mask, votes).levels, border_of(mask).levels
    middle = levels.shape[1] // 2
    shell = (cloud & ~mask)[border_of(mask).box]
    assert levels[shell].mean() < plain[shell].mean() - 1
    assert levels[0, middle, middle] == pytest.approx(plain[0, middle, middle], abs=0.01)
    assert np.array_equal(levels < 0, plain < 0)


def test_the_structure_stays_in_its_domain():
    mask = ball(12)
    domain = np.indices(mask.shape)[0] < 40
    border = border_of(mask, domain=domain)
    outside = ~(domain | mask)[border.box]
    assert np.isinf(border.levels[outside]).all()
    assert border.volume(100) == pytest.approx(np.isfinite(border.levels).sum() / 1000)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_soft_levels_let_the_border_of_a_thin_structure_move_in_small_steps(spacing):
    mask = tube(spacing=spacing)
    hard, soft = border_of(mask, spacing=spacing), border_of(mask, spacing=spacing, softness=SOFTNESS)
    for border in (hard, soft):
        assert border.count(0) == mask.sum()
        assert np.array_equal(border.levels < 0, mask[border.box])
    inside = mask[hard.box]
    same = [np.unique(b.levels[inside], return_counts=True)[1].max() for b in (hard, soft)]
    assert same[0] > 0.2 * mask.sum()  # they would leave the structure all at once
    assert same[1] <= 3
    volumes = [soft.volume(a) for a in np.linspace(-3, 3, 200)]
    assert (np.diff(volumes) >= 0).all()


def test_soft_levels_are_those_of_a_large_structure_but_next_to_its_border():
    mask = ball(14)
    hard, soft = border_of(mask).levels, border_of(mask, softness=SOFTNESS).levels
    far = np.abs(hard) > 1
    assert np.abs(hard - soft)[far].max() < 0.01
    assert np.abs(hard - soft).max() < SOFTNESS


def test_omitted_parts_do_not_attract_the_border():
    mask, part = ball(10), ball(4, center=(52, 35, 35))
    votes = (mask | part).astype(np.float32)
    assert np.array_equal(omitted(mask, votes), part)
    assert np.array_equal(border_of(mask, votes).levels, border_of(mask).levels)


def test_a_reference_crosses_where_it_lies():
    border = border_of(ball(14))
    levels, points = crossings(border, ball(17))
    assert levels.mean() == pytest.approx(3, abs=0.3)
    assert levels.std() < 0.5
    center = np.array([35.0 - s.start for s in border.box])
    assert np.linalg.norm(points - center, axis=1) == pytest.approx(17, abs=1.2)
