"""What a stroke says about voxels that were not painted: a local update of the likelihood.

The painted voxels that the outline had wrong, and those around them in the same slices that the user left as
they are, show what tells one from the other here. Near the stroke, the log-likelihood ratio of the model is
replaced by that of these two samples (kernel density estimates), plus a term for shape: a disk is most
probably a section of something as thick as it is wide. The weight of the replacement falls with distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import cKDTree
from scipy.special import expit

from tumoar.geometry.distance import distance_to
from tumoar.review.strokes import Mask

Field = npt.NDArray[np.float32]

REACH = (3.0, 8.0)
"""Millimeters, least and most, at which the weight has fallen to 0.6; else the radius of the error."""
FAINT = 0.05
"""Weight below which the model is left as it is."""
RING = 10.0
"""Millimeters around a stroke in which the user has seen what was not painted."""
MOST = 400
"""Voxels of each sample that are used."""
BANDWIDTH = 0.5
"""Standard deviation of the kernels, as a fraction of that of the samples together."""
CLIP = 4.0
"""Nats, at most, by which intensities tell the samples apart."""
ROUND = 2.0
"""Nats in the center of the shape that the stroke is a section of; as much against it one radius outside."""
ALIKE, STEEP = 0.5, 4.0
"""Nats from which voxels count as like the wrong ones, and how sharply."""
FEW = 10
"""Voxels that a sample has at least; with fewer, intensities tell nothing."""


@dataclass(frozen=True, eq=False)
class Clue:
    """What one stroke shows, in a box: voxels that were wrong, and others in its slices that were right.

    `inside` is what the wrong ones should be.
    """

    wrong: Mask
    right: Mask
    inside: bool


def weigh_clue(clue: Clue, D: Field, model: Field, spacing: tuple[float, float, float]) -> Field:
    """Log-odds to add for the structure of a stroke, given those of the `model` from its likelihood."""
    if not clue.wrong.any():
        return np.zeros(clue.wrong.shape, np.float32)
    ball, radius = _round(clue.wrong, spacing)
    reach = float(np.clip(radius, *REACH))
    weight = np.exp(-0.5 * (distance_to(clue.wrong, spacing) / reach) ** 2)
    at = weight > FAINT
    says = ROUND * ball[at] + _tell_apart(D[:, at], D[:, clue.wrong], D[:, clue.right])
    sign = 1 if clue.inside else -1
    alike = expit(STEEP * (says - ALIKE))
    out = np.zeros(clue.wrong.shape, np.float32)
    out[at] = weight[at] * alike * (sign * np.maximum(says, 0) - model[at])
    # A stroke never speaks for the opposite of what it says.
    return np.maximum(out, 0) if clue.inside else np.minimum(out, 0)


def _tell_apart(d: Field, wrong: Field, right: Field) -> npt.NDArray[np.floating]:
    """Log ratio of the densities of two samples at values d (N, n)."""
    if wrong.shape[1] < FEW or right.shape[1] < FEW:
        return np.zeros(d.shape[1])
    rng = np.random.default_rng(0)
    samples = [
        s if s.shape[1] <= MOST else s[:, np.sort(rng.choice(s.shape[1], MOST, replace=False))]
        for s in (wrong, right)
    ]
    # Whitened by the spread within both samples, so that contrasts count by what they tell.
    within = np.mean([np.cov(s).reshape(len(d), -1) for s in samples], axis=0)
    scale = np.linalg.inv(np.linalg.cholesky(within + 1e-4 * np.eye(len(d))))
    first, second = (_log_density(scale @ d, scale @ s) for s in samples)
    return np.clip(first - second, -CLIP, CLIP)


def _log_density(d: npt.NDArray[np.floating], sample: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    out = np.empty(d.shape[1])
    for start in range(0, d.shape[1], 20_000):
        part = d[:, start : start + 20_000]
        squared = (part**2).sum(0)[:, None] - 2 * part.T @ sample + (sample**2).sum(0)
        kernel = np.exp(-0.5 * np.maximum(squared, 0) / BANDWIDTH**2)
        out[start : start + 20_000] = np.log(kernel.mean(1) + 1e-6)
    return out


def _round(wrong: Mask, spacing: tuple[float, float, float]) -> tuple[Field, float]:
    """Shape that a stroke is a section of, 1 in its center, 0 on its surface, -1 outside; and its radius, mm.

    It is the union of balls around every voxel of the stroke that touch the edge of the stroke in its plane.
    """
    thin = int(np.argmin([np.ptp(n) for n in np.nonzero(wrong)]))
    others = [axis for axis in range(3) if axis != thin]
    flat = wrong.any(thin)
    steps = [spacing[axis] for axis in others]
    half = ndimage.distance_transform_edt(np.pad(flat, 1), sampling=steps)[1:-1, 1:-1]
    deep = np.expand_dims(half, thin) * wrong
    centers = wrong & (deep >= 0.6 * deep.max())
    places = np.argwhere(centers) * spacing
    radii = deep[centers]
    radius = float(deep.max())
    out = np.full(wrong.shape, -1, np.float32)
    near = distance_to(centers, spacing) < 2 * radius
    tree = cKDTree(places)
    found, which = tree.query(np.argwhere(near) * spacing)
    out[near] = np.clip(1 - found / np.maximum(radii[which], 1.0), -1, 1)
    return out, radius
