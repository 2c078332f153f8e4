"""The model before training, and the family of models that training chooses from.

Tumors are seen in 8 flips, so that the best model is the same in all of them. Its filters therefore come in
two kinds. `OWN` filters equal their flips: Gaussian balls. The others are orbits, the 8 flips of one typical
patch of real shapes. Strengths of balls and orbits and all biases are what training moves: 25 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.cluster.vq import kmeans2

from tumoar.numerics.convolve import M, R
from tumoar.train.shape_data import Patches

FloatArray = npt.NDArray[np.float64]
TIED = 8  # voxels that share one free tap
FLIPS = tuple(tuple(slice(None, None, d) for d in signs) for signs in product((1, -1), repeat=3))

# The filters equal to their flips: width in taps of 2 mm (0: one tap), strength in nats (input with all on,
# above that with none), bias. The first five are majority votes of 2³ voxels: with the visible bias they
# make an even function of the number of voxels that are on, about its square, as a Markov random field of the
# 26 neighbors does. The others act where a wider ball is empty, or nearly so.
OWN = (
    *((0.0, 4.5, -4.5 * threshold) for threshold in (0.3, 0.4, 0.5, 0.6, 0.7)),
    (0.7, -1.0, -1.2), (1.3, -6.0, -2.0), (3.0, -0.5, 0.0),
)  # fmt: skip
VOTES = 5
ORBITS = (M - len(OWN)) // 8
ORBIT_STRENGTH, ORBIT_BIAS = 0.1, -2.5  # nats: standard deviation and mean of inputs from patches


class Parameters(NamedTuple):
    """w (M, R, R, R), b (M,), a; also a direction in that space."""

    w: FloatArray
    b: FloatArray
    a: float


@dataclass(frozen=True)
class Family:
    """Directions in parameter space: of w (n, M, R³), of the hidden biases b (k, M), and the visible bias."""

    w: FloatArray
    b: FloatArray

    @classmethod
    def none(cls) -> Family:
        """No directions."""
        return cls(np.zeros((0, M, R**3)), np.zeros((0, M)))

    @property
    def size(self) -> int:
        """Number of directions."""
        return len(self.w) + len(self.b) + 1

    def along(self, gradient: tuple[Any, Any, Any]) -> FloatArray:
        """(d,) derivatives along the directions, from those with respect to w, b and a."""
        w, b, a = gradient
        return np.concatenate([np.tensordot(self.w, w.reshape(M, -1), 2), self.b @ b, [a]])

    def step(self, move: FloatArray) -> Parameters:
        """Move (d,) along the directions."""
        n = len(self.w)
        w = np.tensordot(move[:n], self.w, 1).reshape(M, R, R, R)
        return Parameters(w, move[n:-1] @ self.b, float(move[-1]))


def votes_and_patches(seen: Patches, rng: np.random.Generator) -> tuple[Parameters, Family]:
    """The first model and its family."""
    own = len(OWN)
    orbits = _orbits(seen, int(rng.integers(2**31)))
    w = np.zeros((M, R**3))
    w[own:] = ORBIT_STRENGTH * orbits.reshape(-1, R**3)
    b = np.full(M, ORBIT_BIAS)
    for m, (width, strength, bias) in enumerate(OWN):
        w[m], b[m] = strength * ball(width), bias
    directions = np.zeros((own + ORBITS, M, R**3))
    for m, (width, _, _) in enumerate(OWN):
        directions[m, m] = ball(width)
    members = np.zeros((own + ORBITS, M))
    members[range(own), range(own)] = 1
    for k in range(ORBITS):
        part = slice(own + 8 * k, own + 8 * k + 8)
        directions[own + k, part] = orbits[k].reshape(8, -1)
        members[own + k, part] = 1
    a = -0.5 * sum(strength for _, strength, _ in OWN[:VOTES])  # balances the votes
    return Parameters(w.reshape(M, R, R, R), b, a), Family(directions, members)


def ball(width: float) -> FloatArray:
    """(R³,) taps of a Gaussian ball, whose input is 1 if all voxels are on."""
    square = ((np.indices((R,) * 3) - R // 2) ** 2).sum(0).ravel()
    x = np.where(square == 0, 1.0, 0.0) if width == 0 else np.exp(-square / 2 / width**2)
    return x / (TIED * x.sum())


def _orbits(seen: Patches, seed: int) -> FloatArray:
    """(ORBITS, 8, R, R, R) means of clusters of patches, less the mean patch, in 8 flips.

    Inputs from patches have a standard deviation of 1.
    """
    patches = np.stack([_turned(x) for x in seen.examples.reshape(-1, R, R, R)])
    centers, _ = kmeans2(patches.reshape(len(patches), -1), ORBITS, seed=seed, minit="++")
    out = np.empty((ORBITS, 8, R, R, R))
    for i, x in enumerate(centers - seen.mean):
        deviation = TIED * np.sqrt(max(float(((seen.components.T @ x) ** 2 * seen.variances).sum()), 1e-9))
        for k, f in enumerate(FLIPS):
            out[i, k] = (x / deviation).reshape(R, R, R)[f]
    return out


def _turned(x: npt.NDArray) -> npt.NDArray:
    """The flip of a patch whose far halves are the heavier ones."""
    n = R // 2
    halves = (x.swapaxes(0, axis) for axis in range(3))
    return x[tuple(slice(None, None, -1 if h[n + 1 :].sum() < h[:n].sum() else 1) for h in halves)]
