"""Sampling in a region: the exact conditional distribution given what is held, and the same bits always."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_model as tiny
from tiny_chain import TinyModel

from tumoar.model.joint import Labels
from tumoar.numerics.threads import use_threads
from tumoar.review import region as region_module
from tumoar.review.allowed import ALL, CORE, EDEMA, NONE, hold
from tumoar.review.region import Scene, sample_region

SHAPE = (2, 2, 2)
SHAPES = (tiny.crbm(1, -0.5), tiny.crbm(2, -0.5))


def scene_of(level: np.ndarray, region: np.ndarray) -> tuple[Scene, SimpleNamespace, np.ndarray]:
    """A scene of the tiny model whose chain stands at `level` (z + y), and its data."""
    model = TinyModel(SHAPE, SHAPES, tiny.prior())
    theta = tiny.theta()
    middle = theta.mu[[0, 2, 4]].mean(0)[:, None, None, None]
    D = (middle + 0.8 * np.random.default_rng(5).standard_normal((tiny.N, *SHAPE))).astype(np.float32)
    z, y = (level >= 1).astype(np.uint8), (level >= 2).astype(np.uint8)
    box = tuple(slice(0, n) for n in SHAPE)
    state = SimpleNamespace(
        labels=Labels(np.ones(SHAPE, np.uint8), z, y),
        log_factor=np.zeros(SHAPE, np.float32),
        fixed_z=None,
        fixed_y=None,
        placed=SimpleNamespace(atlas=SimpleNamespace(labels=tiny.LABELS)),
        shapes=SHAPES,
        theta=theta,
        tau=1.0,
    )
    return Scene(box, model.chain(D).volume, model.pi, region), state, D


def exact(D: np.ndarray, z: np.ndarray, y: np.ndarray, location: np.ndarray | None = None) -> np.ndarray:
    """(2, voxels) probabilities of z and of y, given those that are held, by summing over every map."""
    model = TinyModel(SHAPE, SHAPES, tiny.prior(), fixed_z=z, fixed_y=y, location=location)
    p = np.exp(model.log_maps(model.mixture_densities(tiny.theta(), D)))
    return np.array([p @ (model.maps >= v) for v in (1, 2)])


def sampled(scene, state, allowed, evidence, seeds=8):
    z, y, before = np.zeros(8), np.zeros(8), use_threads(None)
    try:
        use_threads(1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(region_module, "SAMPLES", 250)
            for seed in range(seeds):
                found = sample_region(scene, state, allowed, evidence, seed)
                z += found.z.ravel() / found.samples / seeds
                y += found.y.ravel() / found.samples / seeds
    finally:
        use_threads(before)
    return np.array([z, y])


NOTHING = (np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32))


@pytest.mark.parametrize(
    "told",
    [EDEMA, NONE | CORE, *(pytest.param(t, marks=pytest.mark.slow) for t in (CORE, NONE, NONE | EDEMA))],
)
def test_what_is_held_leaves_the_others_their_conditional_distribution(told):
    level = np.array([0, 1, 2, 0, 1, 0, 0, 2]).reshape(SHAPE)
    region = np.ones(SHAPE, bool)
    region[0, 0] = False  # two voxels outside, held as they are
    allowed = np.full(SHAPE, ALL, np.uint8)
    allowed[1, 0, 1] = told
    scene, state, D = scene_of(level, region)
    z, y = hold(allowed, level.astype(np.uint8), np.zeros(SHAPE, bool))
    outside = np.where(region, -1, level)
    z, y = (np.where(region, held, outside >= v).astype(np.int8) for held, v in ((z, 1), (y, 2)))
    found = sampled(scene, state, allowed, NOTHING)
    inside = region.ravel()
    if told == NONE | CORE:  # y = 1 given z: core or none, as the sampler has it
        free = y.copy()
        free[1, 0, 1] = -1
        model = TinyModel(SHAPE, SHAPES, tiny.prior(), fixed_z=z, fixed_y=free)
        p = np.exp(model.log_maps(model.mixture_densities(tiny.theta(), D)))
        keep = model.maps[:, 5] != 1
        expected = np.array([(p * keep) @ (model.maps >= v) for v in (1, 2)]) / p[keep].sum()
    else:
        expected = exact(D, z, y)
    assert np.abs(found - expected)[:, inside].max() < 0.05
    without = exact(D, np.where(allowed == ALL, z, -1), np.where(allowed == ALL, y, -1))
    assert np.abs(without - expected)[:, inside].max() > 0.1, "holding the voxel changes something"


def test_evidence_is_added_to_the_log_odds():
    level = np.zeros(SHAPE, int)
    scene, state, D = scene_of(level, np.ones(SHAPE, bool))
    allowed = np.full(SHAPE, ALL, np.uint8)
    location = np.where(np.arange(8).reshape(SHAPE) % 2, 1.5, -0.5).astype(np.float32)
    free = np.full(SHAPE, -1, np.int8)
    found = sampled(scene, state, allowed, (location, NOTHING[1]))
    assert np.abs(found - exact(D, free, free, location)).max() < 0.05


def test_the_bits_do_not_depend_on_the_number_of_threads():
    scene, state, _ = scene_of(np.ones(SHAPE, int), np.ones(SHAPE, bool))
    allowed = np.full(SHAPE, ALL, np.uint8)
    before = use_threads(None)
    found = []
    try:
        for threads in (1, 2):
            use_threads(threads)
            found.append(sample_region(scene, state, allowed, NOTHING, 3))
    finally:
        use_threads(before)
    for name in ("z", "y", "volumes"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name))
    assert all(np.array_equal(getattr(found[0].labels, n), getattr(found[1].labels, n)) for n in "lzy")
