"""Structures drawn around an outline: what goes in is what comes out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.geometry.border import box_around, find_border
from tumoar.model.conformal import SHARES, central
from tumoar.model.expert import Learned, Part, chance_inside, draw, learn, observe

SPACING = (1.0, 1.0, 1.0)
GRID = np.indices((64, 64, 64)) - 31.5
WHOLE, CORE = np.linalg.norm(GRID, axis=0) < 16, np.linalg.norm(GRID + 4, axis=0) < 8
NUMBERS = Learned(tuple(np.linspace(-1.5, 1.5, 25)), 0.8, 0.3, 6.0)
STILL = Learned((0.0,) * 12, 0.0, 0.0, 6.0)


def part(mask, learned=NUMBERS, **more):
    border = find_border(mask, mask.astype(np.float32), np.ones_like(mask), SPACING)
    return Part(border, border.onto(mask.shape, box_around(WHOLE, SPACING)), learned, **more)


def full(mask):
    out = np.zeros(WHOLE.shape, bool)
    out[box_around(WHOLE, SPACING)] = mask
    return out


def test_no_spread_gives_back_the_outline():
    for core, whole in draw([part(CORE, STILL), part(WHOLE, STILL)], 3, np.random.default_rng(0)):
        assert np.array_equal(full(core), CORE)
        assert np.array_equal(full(whole), WHOLE)


def test_core_stays_inside_the_whole_tumor():
    wide = replace(NUMBERS, displacements=tuple(np.linspace(-6, 6, 25)), roughness=2.0)
    for core, whole in draw([part(CORE, wide), part(WHOLE, wide)], 20, np.random.default_rng(0)):
        assert not (core & ~whole).any()


def test_volumes_are_those_of_the_common_part():
    one = part(WHOLE)
    volumes = sorted(m.sum() for (m,) in draw([one], 200, np.random.default_rng(0)))
    for share in SHARES:
        low, high = (one.border.count(a) for a in central(NUMBERS.displacements, share))
        inside = np.mean([low <= v <= high for v in volumes])
        assert inside == pytest.approx(share, abs=0.02)


def test_probabilities_are_those_of_the_samples():
    one = part(WHOLE)
    drawn = np.mean([m for (m,) in draw([one], 300, np.random.default_rng(1))], axis=0)
    chance = chance_inside(NUMBERS, one.levels)
    for level in range(-4, 4):
        at = (one.levels >= level) & (one.levels < level + 1)
        assert drawn[at].mean() == pytest.approx(chance[at].mean(), abs=0.03)
    levels = np.linspace(-15, 15, 100)
    assert (np.diff(chance_inside(NUMBERS, levels)) <= 0).all()


@pytest.mark.slow
def test_numbers_are_found_again_in_references_drawn_with_them():
    one, rng = part(WHOLE), np.random.default_rng(2)
    observed = [observe(one.border, full(m), rng) for (m,) in draw([one], 60, rng)]
    found = learn(observed)
    assert found.interval(0.9) == pytest.approx(NUMBERS.interval(0.9), abs=0.35)
    assert found.roughness == pytest.approx(NUMBERS.roughness, rel=0.25)
    assert found.length == pytest.approx(NUMBERS.length, rel=0.3)


@pytest.mark.slow
def test_references_drawn_from_the_layer_are_covered():
    """Calibrate on some balls, predict others: balls of all sizes, references from the layer itself."""
    rng, hits, count = np.random.default_rng(3), dict.fromkeys(SHARES, 0), 0
    a = []
    for radius in rng.uniform(7, 18, 60):
        one = part(np.linalg.norm(GRID, axis=0) < radius)
        box = box_around(WHOLE, SPACING)
        ((mask,),) = draw([replace(one, levels=one.border.onto(WHOLE.shape, box))], 1, rng)
        # One sample of `draw` has the median; move it to a displacement of its own.
        size = one.border.count(one.border.displacement(int(mask.sum())) + rng.normal(0, 1))
        a.append((one.border, one.border.displacement(size), size))
    for k, (border, _, size) in enumerate(a):
        others = [d for j, (_, d, _) in enumerate(a) if j != k]
        count += 1
        for share in SHARES:
            low, high = (border.count(x) for x in central(others, share))
            hits[share] += low <= size <= high
    for share in SHARES:
        assert hits[share] / count == pytest.approx(share, abs=0.05)


def test_a_patient_left_out_does_not_change_what_is_learned():
    one, rng = part(WHOLE), np.random.default_rng(4)
    observed = [observe(one.border, full(m), rng) for (m,) in draw([one], 12, rng)]
    before = learn(observed[1:])
    wild = replace(observed[0], displacement=50.0, roughness=30.0)
    assert learn([wild, *observed[1:]]) != before
    assert learn([wild, *observed[1:]][1:]) == before


def test_omitted_parts_are_drawn_as_often_as_learned():
    parts = np.zeros(WHOLE.shape, np.int32)
    parts[30:33, 30:33, 60:63] = 1
    box = box_around(WHOLE, SPACING)
    one = part(WHOLE, replace(STILL, displacements=(0.2,) * 12), parts=parts[box], chance=0.3)
    drawn = [m[parts[box] == 1] for (m,) in draw([one], 200, np.random.default_rng(0))]
    assert all(m.all() or not m.any() for m in drawn)
    assert np.mean([m.all() for m in drawn]) == pytest.approx(0.3, abs=0.1)


def test_the_same_seed_draws_the_same():
    one = part(WHOLE)
    first, second = (list(draw([one], 3, np.random.default_rng(5))) for _ in range(2))
    assert all(np.array_equal(a, b) for (a,), (b,) in zip(first, second))
