"""Likelihood exponent estimated from the correlation of noise between neighboring voxels.

The model assumes independent noise. Thick slices, interpolation and anatomy that the mixtures do not model
correlate the noise of neighbors, and the likelihood of a region becomes overconfident. An exponent τ on each
voxel's likelihood corrects this on average: the mean of two neighbors with correlation ρ has the variance of
the mean of 2 τ independent voxels if τ = 1 / (1 + ρ). ρ is the mean over the three axes.
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
"""Mixture whose residuals are used: large, connected, a single Gaussian."""
LEAST = 1000
"""Minimum number of neighbor pairs per axis."""


def estimate_likelihood_exponent(volume: Volume, table: LabelTable, labels: Labels, theta: Theta) -> float:
    """Estimate τ from the residuals in white matter without tumor, as given by `labels`."""
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
    """(3,) correlation of r (N, X, Y, Z) between neighbors in a mask, per axis; 0 if there are too few."""
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
