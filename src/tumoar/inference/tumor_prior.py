"""The simplified prior of tumor in Algorithm 2: flat as in section 2.3.2, or local.

With the flat prior every voxel of the brain is tumor with probability w. Calling a large bright region tumor
then costs log w in each of its voxels, and a bias field that brightens the whole region explains it at a
lower price. A local prior removes that price: w_i is the smoothed posterior probability of tumor around voxel
i, as in the EMS algorithm (Silverman et al., J. R. Stat. Soc. B 52, 1990). It rises inside a region that
looks like tumor throughout, and falls where single voxels do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.numerics.voxels import WITH_DATA

Array = npt.NDArray[np.floating]
Pi = npt.NDArray[np.float32]

LEAST = 0.005
"""Bound on w and on 1 - w: no voxel of the brain is certain."""


@dataclass(frozen=True)
class TumorPrior:
    """p(z_i = 1) = w_i π_B and p(y_i = 1 | z_i = 1) = u, with w (X, Y, Z) and the `brain` columns of π.

    `factor` (X, Y, Z), from the comparison of sides and from the location, multiplies w whenever w is set.
    """

    w: npt.NDArray[np.float32]
    u: float
    brain: npt.NDArray[np.int64]
    factor: npt.NDArray[np.float32]

    def apply(self, pi: Pi, before: TumorPrior | None = None) -> Pi:
        """Fill the last two columns of π, of edema and core, and reduce the columns of the brain; in place.

        `before` is the prior that π has, if any; this one takes its place.
        """
        for x in range(len(pi)):
            rest = 1 - self.w[x] if before is None else (1 - self.w[x]) / (1 - before.w[x])
            pi[x][..., self.brain] *= rest[..., None]
            tumor = pi[x][..., self.brain].sum(-1) * self.w[x] / (1 - self.w[x])
            pi[x][..., -2], pi[x][..., -1] = tumor * (1 - self.u), tumor * self.u
        return pi

    def marginalize(self, L: Pi) -> Pi:
        """(X, Y, Z, C) densities of classes with tumor summed out, from those of C classes, edema and core.

        Reuses the memory of L (X, Y, Z, C + 2).
        """
        X, Y, Z, columns = L.shape
        C = columns - 2
        out = L.reshape(-1)[: X * Y * Z * C].reshape(X, Y, Z, C)
        for x in range(X):  # rows of `out` lie before those of L that are still to be read
            slab, w = L[x].copy(), self.w[x][..., None]
            tumor = (1 - self.u) * slab[..., C] + self.u * slab[..., C + 1]
            slab[..., self.brain] += w * (tumor[..., None] - slab[..., self.brain])
            out[x] = slab[..., :C]
        return out

    def follow(self, pi: Pi, L: Pi, use: npt.NDArray[np.uint8], sigma: float) -> TumorPrior:
        """w as the mean posterior of tumor in brain around each voxel, weighted by a Gaussian (voxels).

        π and L (X, Y, Z, C + 2) are prior and density of C classes, edema and core.
        """
        tumor = pi[..., -2:].sum(-1)
        mask = ((use == WITH_DATA) & (tumor > 0.5 * self.w)).astype(np.float32)
        posterior = find_posterior(pi, L)
        around = ndimage.gaussian_filter(posterior * mask, sigma) / (
            ndimage.gaussian_filter(mask, sigma) + 1e-3
        )
        return replace(self, w=np.clip(around * self.factor, LEAST, 1 - LEAST).astype(np.float32))

    def resample(self, shape: tuple[int, int, int], step: float) -> TumorPrior:
        """Interpolate w to a grid with the same first voxel and voxels `step` of these voxels apart."""
        if step == 1 and shape == self.w.shape:
            return self
        w, factor = (
            ndimage.affine_transform(v, np.full(3, step), output_shape=shape, order=1, mode="nearest")
            for v in (self.w, self.factor)
        )
        return replace(self, w=w.astype(np.float32), factor=factor.astype(np.float32))


def find_posterior(pi: Pi, L: Pi) -> npt.NDArray[np.float32]:
    """(X, Y, Z) posterior probability of tumor; the last columns of π and L are edema and core."""
    out = np.zeros(pi.shape[:3], np.float32)
    for x in range(len(pi)):
        joint = pi[x] * L[x]
        out[x] = joint[..., -2:].sum(-1) / np.maximum(joint.sum(-1), np.finfo(np.float32).tiny)
    return out
