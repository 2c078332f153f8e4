"""Histogram passes against a slow twin, and their slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage as ndi

from tumoar.numerics.histogram import MISSING, joint_counts, mixture_score

N, B, C = 2, 6, 4


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(C), (9, 8, 7)).astype(np.float32)
    q = rng.uniform(-3, 12, (400, 3))
    bins = rng.integers(0, B, (400, N)).astype(np.uint8)
    bins[::7, 0] = MISSING
    M = np.hstack([np.eye(3) + rng.normal(0, 0.05, (3, 3)), rng.normal(0, 0.5, (3, 1))])
    ratio = rng.uniform(0.2, 3, (N, B, C)).astype(np.float32)
    return q, bins, M, P, ratio


def slow_pi(q, M, P):
    u = M[:, :3] @ q.T + M[:, 3:]
    return np.stack(
        [ndi.map_coordinates(p.astype(float), u, order=1, mode="nearest") for p in np.moveaxis(P, -1, 0)], 1
    )


def slow_score(q, bins, M, P, ratio):
    pi = slow_pi(q, M, P)
    told = bins != MISSING
    like = np.ones_like(pi)
    for n in range(N):
        like[told[:, n]] *= ratio[n, bins[told[:, n], n]]
    mix = (pi * like).sum(1)
    post = pi * like / mix[:, None]
    counts = np.zeros((N, B, C))
    for n in range(N):
        np.add.at(counts[n], bins[told[:, n], n], post[told[:, n]])
    return np.log(mix).sum(), counts


def test_counts_are_those_of_the_slow_twin(problem):
    q, bins, M, P, ratio = problem
    expected = slow_score(q, bins, M, P, np.ones_like(ratio))[1]
    assert np.allclose(joint_counts(q, bins, M, P, B), expected, atol=1e-4)


def test_score_is_that_of_the_slow_twin(problem):
    score, _, _, counts = mixture_score(*problem)
    expected, expected_counts = slow_score(*problem)
    assert score == pytest.approx(expected, rel=1e-5)
    assert np.allclose(counts, expected_counts, atol=1e-4)


def test_slope_is_that_of_the_score(problem):
    q, bins, M, P, ratio = problem
    _, slope, fisher, _ = mixture_score(*problem)
    h = 1e-6
    for k in range(12):
        A = np.zeros(12)
        A[k] = h
        moved = [M + s * (A.reshape(3, 4) @ np.vstack([M, [0, 0, 0, 1]])) for s in (1, -1)]
        difference = (
            slow_score(q, bins, moved[0], P, ratio)[0] - slow_score(q, bins, moved[1], P, ratio)[0]
        ) / (2 * h)
        assert slope[k] == pytest.approx(difference, rel=2e-3, abs=2e-2)
    assert np.linalg.eigvalsh(fisher).min() > -1e-6 * np.trace(fisher)


def test_samples_that_say_nothing_add_nothing(problem):
    q, bins, M, P, ratio = problem
    score, slope, _, counts = mixture_score(q, np.full_like(bins, MISSING), M, P, ratio)
    assert score == pytest.approx(0, abs=1e-3)
    assert np.abs(slope).max() < 1e-2
    assert not counts.any()
