"""τ from the noise of neighbors: 1 where it is independent, less where they say the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny_model as tiny

from tumoar.inference.noise_correlation import TISSUE, evidence, neighbor_correlations
from tumoar.model import joint
from tumoar.model.bias import field

SHAPE = (40, 36, 44)
LABELS = tiny.LABELS


def smoothed(noise: np.ndarray, rho: tuple[float, ...]) -> np.ndarray:
    """Stationary noise of variance 1 whose neighbors along axis a correlate by rho[a]; further ones less."""
    for axis, r in enumerate(rho, noise.ndim - 3):
        out = np.moveaxis(noise.copy(), axis, 0)
        for i in range(1, len(out)):
            out[i] = r * out[i - 1] + np.sqrt(1 - r**2) * out[i]
        noise = np.moveaxis(out, 0, axis)
    return noise


@pytest.mark.parametrize("rho", [(0.0, 0.0, 0.0), (0.3, 0.3, 0.3), (0.1, 0.2, 0.8)])
def test_correlations_are_found(rho):
    r = smoothed(np.random.default_rng(1).standard_normal((2, *SHAPE)), rho)
    mask = np.random.default_rng(2).random(SHAPE) < 0.8
    assert neighbor_correlations(r, mask) == pytest.approx(rho, abs=0.015)


def test_the_mean_of_two_neighbors_counts_as_so_many_voxels():
    rho = (0.2, 0.5, 0.7)
    r = smoothed(np.random.default_rng(3).standard_normal((8, *SHAPE)), rho)
    found = neighbor_correlations(r, np.ones(SHAPE, bool))
    for axis in (1, 2, 3):
        pairs = (np.delete(r, -1, axis) + np.delete(r, 0, axis)) / 2
        assert pairs.var() * 2 / (1 + found[axis - 1]) == pytest.approx(1, rel=0.03)


def test_voxels_outside_the_mask_have_no_say():
    rng = np.random.default_rng(4)
    r = rng.standard_normal((1, *SHAPE))
    mask = np.zeros(SHAPE, bool)
    mask[:20] = True
    r[:, 20:] = 100.0
    assert neighbor_correlations(r, mask).max() < 0.02
    assert (neighbor_correlations(r, np.zeros(SHAPE, bool)) == 0).all()


@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_bias_field_contrasts_and_tumor_do_not_matter(rho):
    """White matter, with a bias field and contrasts that vary together; half of it tumor of any noise."""
    rng = np.random.default_rng(5)
    theta = tiny.theta()
    C = np.zeros_like(theta.C)
    C[:, 1, 2, 0] = 3.0
    theta = replace(theta, C=C)
    x = LABELS.x_named(TISSUE)
    q = LABELS.component_slice(x).start
    noise = smoothed(rng.standard_normal((theta.N, *SHAPE)), (rho,) * 3)
    D = np.tensordot(np.linalg.cholesky(theta.Sigma[q]), noise, 1) + theta.mu[q][:, None, None, None]
    D = (D + field(C, SHAPE)).astype(np.float32)
    z = np.zeros(SHAPE, np.uint8)
    z[:20] = 1
    D[:, :20] += 50.0
    l = np.full(SHAPE, np.flatnonzero(LABELS.x_of_l == x)[0], np.uint8)
    volume = joint.volume(D, np.ones(SHAPE, np.uint8))
    labels = joint.Labels(l, z, np.zeros_like(z))
    assert evidence(volume, LABELS, labels, theta) == pytest.approx(1 / (1 + rho), rel=0.02)
    assert evidence(volume, LABELS, replace(labels, z=np.ones_like(z)), theta) == 1.0
