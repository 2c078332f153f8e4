"""How much a voxel tells that its neighbor has not told already.

The model takes noise to be independent from voxel to voxel. Where it is not, because of thick slices,
interpolation, or anatomy that the mixtures do not know, neighbors say the same thing more than once, and the
likelihood of a region is too sure of itself. A power τ on every voxel's likelihood puts that right on
average: the mean of two neighbors whose noise correlates by ρ has the variance that 2 τ independent voxels
would give it, τ = 1 / (1 + ρ), with the mean ρ over the three axes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import find_objects

from tumoar.model.bias import field
from tumoar.model.gmm import Theta
from tumoar.model.joint import Labels
from tumoar.numerics.voxels import WITH_DATA, Volume
from tumoar.vocabulary.labels import LabelTable

TISSUE = "GWM"
"""The mixture whose residuals are looked at: large, in one piece, one Gaussian."""
LEAST = 1000
"""Pairs of neighbors, without which nothing can be said."""


def estimate_likelihood_exponent(volume: Volume, table: LabelTable, labels: Labels, theta: Theta) -> float:
    """τ, from the residuals of the voxels that `labels` give to white matter without tumor."""
    if not table.has_gmm(TISSUE):
        return 1.0
    x = table.x_named(TISSUE)
    tissue = (table.x_of_l[labels.l] == x) & (labels.z == 0) & (volume.use == WITH_DATA)
    found = find_objects(tissue.view(np.uint8))
    if not found:
        return 1.0
    q = table.component_slice(x).start
    whitening = np.linalg.inv(np.linalg.cholesky(theta.Sigma[q])).astype(np.float32)
    r = np.empty((theta.N, *tissue[found[0]].shape), np.float32)
    for n, at in enumerate(theta.mu[q] - volume.center):
        r[n] = (volume.D[n] - field(theta.C[n : n + 1], tissue.shape)[0] - at)[found[0]]
    return float(1 / (1 + correlate_neighbors(np.tensordot(whitening, r, 1), tissue[found[0]]).mean()))


def correlate_neighbors(r: npt.NDArray[np.floating], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """(3,) of r (N, X, Y, Z) with itself one voxel on, within a mask; 0 where there are too few pairs."""
    square = (r * r).sum(0)
    out = np.zeros(3)
    for axis in range(3):
        here, there = ((slice(None),) * axis + (s,) for s in (slice(None, -1), slice(1, None)))
        pairs = mask[here] & mask[there]
        if pairs.sum() < LEAST:
            continue
        product = (r[(slice(None), *here)] * r[(slice(None), *there)]).sum(0)[pairs].mean(dtype=float)
        out[axis] = product / (0.5 * (square[here] + square[there])[pairs].mean(dtype=float))
    return np.clip(out, 0, 1)
