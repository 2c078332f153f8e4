"""What strokes say about voxels that were not painted: a local update of the likelihood.

A voxel is most probably what the user said about voxels like it: near it, as deep in the automatic outline
or as far from it, and as bright in every contrast. Painted voxels, and those beside them in the same slices
that the user left as they are, are counted with kernels in these three, and the model counts as some more.
Where the counts contradict the automatic outline, they replace the likelihood ratio of the model; elsewhere
the model is left as it is. The counts of all strokes add up.

How far such a conclusion reaches is learned from the strokes: with each width of the kernel of place, every
seen voxel is predicted from those that are at least as far away. The width that is expected to set most
voxels right is used, less three times those that it makes wrong, and none if nothing is gained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.geometry.distance import depth, distance_to
from tumoar.numerics.threads import map_threads
from tumoar.review.strokes import Mask

Field = npt.NDArray[np.float32]
Array = npt.NDArray[np.floating]
Told = npt.NDArray[np.uint8]

NEAR = (2.0, 4.0, 8.0)
"""Standard deviations of the kernel of place, mm, from which one is chosen."""
PRIORS = (0.1, 1.0, 10.0)
"""Voxels that the model counts as, from which one is chosen."""
DEEP = 1.0
"""Standard deviation of the kernel of depth in the automatic outline, mm."""
BRIGHT = 1.5
"""Standard deviation of the kernel of brightness, in those of voxels of one kind."""
LEFT = 0.25
"""Weight of a voxel that was left as it is, beside a painted one."""
DEEPEST = 10.0
"""Millimeters beyond which depths are alike."""
FAR = 2.5
"""Standard deviations of place beyond which voxels are not looked at."""
HARM = 3.0
"""Right voxels that must be gained for each that is made wrong."""
MOST = 3000
"""Voxels that are counted at most."""

UNSEEN, PAINTED_OUT, PAINTED_IN, LEFT_OUT, LEFT_IN = range(5)
"""What is told about a voxel: whether it is in a structure, by a stroke or because it was left so."""


@dataclass(frozen=True, eq=False)
class Outline:
    """The automatic outline, and what voxels are compared by: images D (N, X, Y, Z) and depth in it, mm.

    `model` is the log-odds that a voxel is in it by its likelihood.
    """

    D: Field
    deep: Field
    mask: Mask
    model: Field
    spacing: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Voxels:
    """Some voxels: place in mm, depth and brightness in widths of their kernels, log-odds of the model."""

    place: Array
    look: Array
    model: Array
    is_in: npt.NDArray[np.bool_]


def depth_in(mask: Mask, spacing: tuple[float, float, float]) -> Field:
    """(X, Y, Z) mm inside an outline, negative outside; nowhere near one, as if far outside of it."""
    if not mask.any():
        return np.full(mask.shape, -DEEPEST, np.float32)
    return np.clip(depth(mask, spacing), -DEEPEST, DEEPEST)


def weigh(told: Told, outline: Outline, where: Mask) -> Field:
    """Log-odds to add in `where`."""
    out = np.zeros(told.shape, np.float32)
    seen = np.flatnonzero(told)
    if not np.isin(told, (PAINTED_IN, PAINTED_OUT)).any():
        return out
    if len(seen) > MOST:  # the same ones every time
        seen = np.sort(np.random.default_rng(0).choice(seen, MOST, replace=False))
    kinds = told.ravel()[seen]
    is_in = np.isin(kinds, (PAINTED_IN, LEFT_IN))
    weights = np.where(kinds <= PAINTED_IN, 1.0, LEFT).astype(np.float32)
    whiten = _whiten(outline.D.reshape(len(outline.D), -1)[:, seen], is_in)
    examples = _voxels(outline, seen, whiten)
    best = _choose(examples, is_in, weights)
    if best is None:
        return out
    near, prior = best
    at = np.flatnonzero(where & (distance_to(told > 0, outline.spacing) <= FAR * near))

    def count(some: npt.NDArray[np.intp]) -> None:
        voxels = _voxels(outline, some, whiten)
        far, alike = _compare(voxels, examples)
        counts = (np.exp(-0.5 * far / near**2) * alike) @ np.stack([weights * is_in, weights * ~is_in], 1)
        out.ravel()[some] = _contradict(counts, prior, voxels)

    map_threads(count, np.array_split(at, 1 + len(at) // 4096))
    return out


def _choose(examples: Voxels, is_in: npt.NDArray[np.bool_], weights: Field) -> tuple[float, float] | None:
    """Width and prior that are expected to set most voxels right; None if the outline is better as it is."""
    far, alike = _compare(examples, examples)
    sides = np.stack([weights * is_in, weights * ~is_in], 1)
    was_right = examples.is_in == is_in
    best, found = 0.0, None
    for near in NEAR:
        counts = (np.exp(-0.5 * far / near**2) * alike * (far >= near**2)) @ sides
        for prior in PRIORS:
            is_flipped = _contradict(counts, prior, examples) != 0
            gain = float((weights * is_flipped * np.where(was_right, -HARM, 1)).sum())
            if gain * near > best:  # it reaches as many slices as the kernel is wide
                best, found = gain * near, (near, prior)
    return found


def _contradict(counts: Array, prior: float, voxels: Voxels) -> Array:
    """Log-odds to add: those of the counts instead of the model's, where they contradict the outline."""
    p = 1 / (1 + np.exp(-np.clip(voxels.model, -20, 20)))
    says = np.log(counts[:, 0] + prior * p) - np.log(counts[:, 1] + prior * (1 - p))
    sign = np.where(voxels.is_in, -1, 1)
    return np.where(sign * says > 0, sign * np.maximum(sign * (says - voxels.model), 0), 0)


def _compare(a: Voxels, b: Voxels) -> tuple[Array, Array]:
    """(n, m) squared distances in mm², and kernels of how alike voxels look."""
    return _squares(a.place, b.place), np.exp(-0.5 * _squares(a.look, b.look))


def _squares(a: Array, b: Array) -> Array:
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0)


def _voxels(outline: Outline, flat: npt.NDArray[np.intp], whiten: Array) -> Voxels:
    place = np.stack(np.unravel_index(flat, outline.deep.shape), 1) * np.array(outline.spacing)
    deep = outline.deep.ravel()[flat] / DEEP
    bright = whiten @ outline.D.reshape(len(outline.D), -1)[:, flat] / BRIGHT
    look = np.concatenate([deep[None], bright]).T
    return Voxels(
        place.astype(np.float32),
        look.astype(np.float32),
        outline.model.ravel()[flat],
        outline.mask.ravel()[flat],
    )


def _whiten(d: Field, is_in: npt.NDArray[np.bool_]) -> Array:
    """(N, N) matrix after which contrasts have unit spread among voxels of one kind, without correlation."""
    kinds = [d[:, kind] for kind in (is_in, ~is_in) if kind.sum() > len(d) + 1]
    if not kinds:
        return np.eye(len(d))
    within = np.mean([np.cov(kind).reshape(len(d), -1) for kind in kinds], axis=0)
    return np.linalg.inv(np.linalg.cholesky(within + 1e-4 * np.eye(len(d))))
