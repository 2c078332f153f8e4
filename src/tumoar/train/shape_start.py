"""The model before training, and the family of models that training chooses from.

Tumors are seen in 8 flips, so that the best model is the same in all of them: flips exchange its filters.
They are majority votes of 2³ voxels, a wider Gaussian ball, and flat surfaces that face one of 26 directions.
Training scales the votes, strengths with biases, and moves the visible bias; that determines the strength of
the surfaces badly, so that it stays what it is, and `shape_hold` sets their threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import M, R

FloatArray = npt.NDArray[np.float64]
TIED = 8  # voxels that share one free tap

# Balls: width in taps of 2 mm (0: one tap), strength in nats (input with all on, above that with none), bias.
# The first are majority votes of 2³ voxels: with the visible bias they make a function of the number of
# voxels that are on, about its square, as a Markov random field of the 26 neighbors does. The last acts where
# a wider ball is empty, or nearly so.
BALLS = (*((0.0, 5.5, bias) for bias in (-1.6, -1.9, -2.3, -2.7, -3.0)), (1.3, -25.0, -0.8))
VOTES = 5
# Flat surfaces: width, strength (input at such a surface above that at the opposite one), bias. Votes and
# balls make small shapes shrink, as surface tension does; these reward a surface that is large and smooth.
PLANE = (2.5, 12.0, -6.0)
DIRECTIONS = sorted((d for d in product((-1, 0, 1), repeat=3) if any(d)), key=np.count_nonzero)
NEVER = -12.0  # bias of the other filters, which are zero


class Parameters(NamedTuple):
    """w (M, R, R, R), b (M,), a; also a direction in that space."""

    w: FloatArray
    b: FloatArray
    a: float


@dataclass(frozen=True)
class Family:
    """Directions in parameter space, of w (n, M, R³) with b (n, M); the visible bias is one more."""

    w: FloatArray
    b: FloatArray

    @classmethod
    def none(cls) -> Family:
        """No directions."""
        return cls(np.zeros((0, M, R**3)), np.zeros((0, M)))

    @property
    def size(self) -> int:
        """Number of directions."""
        return len(self.w) + 1

    def along(self, gradient: tuple[Any, Any, Any]) -> FloatArray:
        """(d,) derivatives along the directions, from those with respect to w, b and a."""
        w, b, a = gradient
        return np.append(np.tensordot(self.w, w.reshape(M, -1), 2) + self.b @ b, a)

    def step(self, move: FloatArray) -> Parameters:
        """Move (d,) along the directions."""
        w = np.tensordot(move[:-1], self.w, 1).reshape(M, R, R, R)
        return Parameters(w, move[:-1] @ self.b, float(move[-1]))


def first_model() -> tuple[Parameters, Family]:
    """The first model, under which empty and full surroundings are equally probable, and its family."""
    w, b = np.zeros((M, R**3)), np.full(M, NEVER)
    for m, (width, strength, bias) in enumerate(BALLS):
        w[m], b[m] = strength * ball(width), bias
    width, strength, bias = PLANE
    for m, direction in enumerate(DIRECTIONS, len(BALLS)):
        w[m], b[m] = strength * plane(direction, width), bias
    members = np.zeros((1, M))
    members[0, :VOTES] = 1
    a = balanced_bias(w, b)
    return Parameters(w.reshape(M, R, R, R), b, a), Family(members[:, :, None] * w, members * b)


def balanced_bias(w: FloatArray, b: FloatArray) -> float:
    """The visible bias under which empty and full surroundings are equally probable."""
    full = TIED * w.reshape(len(w), -1).sum(1)
    return -float((np.logaddexp(0, b + full) - np.logaddexp(0, b)).sum())


def ball(width: float) -> FloatArray:
    """(R³,) taps of a Gaussian ball, whose input is 1 if all voxels are on."""
    square = ((np.indices((R,) * 3) - R // 2) ** 2).sum(0).ravel()
    x = np.where(square == 0, 1.0, 0.0) if width == 0 else np.exp(-square / 2 / width**2)
    return x / (TIED * x.sum())


def plane(direction: tuple[int, ...], width: float) -> FloatArray:
    """(R³,) taps in a ball, positive ahead and negative behind; the input at such a surface is 1/2."""
    x = np.indices((R,) * 3) - R // 2
    ahead = np.clip(np.tensordot(direction, x, 1) / np.linalg.norm(direction), -1, 1)
    out = (np.exp(-(x**2).sum(0) / 2 / width**2) * ahead).ravel()
    return out / (TIED * np.abs(out).sum())
