"""The model before training, and the family of models that training chooses from.

Tumors have no preferred side, so that the best model looks the same from all of them: the 48 symmetries of
the cube exchange its filters. There are two kinds. *Balls* are the same from all sides; those of one kind
share their taps and differ in their biases, so that together they make a function of what they see.
*Surfaces* face one of 26 directions (6 faces, 12 edges, 8 corners of a cube) and have the opposite taps on
opposite sides; the ones of a class are turns of each other. Within that every tap and every bias is free:
training moves 196 numbers in place of 13,761. Opposite surfaces, and balls of one kind, share their sums in
the sampler, which therefore computes 16 correlations in place of 40.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.numerics.convolve import M, R

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Symmetry = tuple[IntArray, int]  # a signed permutation (3, 3) of the axes; the sign it gives to a filter
TIED = 8  # voxels that share one free tap

# Kinds of balls at the start: width in taps of 2 mm (0: one tap), strength in nats (input with all on, above
# that with none), biases. The first are majority votes of 2³ voxels: with the visible bias they make a
# function of the number of voxels that are on, about its square, as a Markov random field of the 26 neighbors
# does. The second acts where a wider ball is empty, or nearly so. The third is weak, and free to become
# something.
BALLS = (
    (0.0, 4.0, (-1.16, -1.38, -1.67, -1.96, -2.18)),
    (1.3, -25.0, (-0.8,)),
    (1.0, 1.5, (-0.2, -0.36, -0.51, -0.67, -0.83, -0.99, -1.14, -1.3)),
)
# Surfaces: width, strength (input at such a surface above that at the opposite one), bias. Balls make small
# shapes shrink, as surface tension does; these reward a surface that is large and smooth.
SURFACE = (2.5, 12.0, -6.0)
DIRECTIONS = sorted((d for d in product((-1, 0, 1), repeat=3) if any(d)), key=np.count_nonzero)
TAPS = np.array(list(np.ndindex(R, R, R))) - R // 2


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


@cache
def first_model() -> tuple[Parameters, Family]:
    """The first model, under which empty and full surroundings are equally probable, and its family."""
    w, b = np.zeros((M, R**3)), np.zeros(M)
    directions_w: list[FloatArray] = []
    directions_b: list[FloatArray] = []

    def add(filters: list[int], basis: list[list[FloatArray]], biases: list[list[int]]) -> None:
        """Directions: of the taps of some filters, a basis vector given filter by filter; of biases."""
        for vectors in basis:
            one = np.zeros_like(w)
            one[filters] = vectors
            # a step of 1 changes the input of a unit by 1 if the voxels on are picked at random, about
            directions_w.append(one / TIED / np.sqrt(np.abs(vectors[0]).sum()))
            directions_b.append(np.zeros(M))
        for together in biases:
            directions_w.append(np.zeros_like(w))
            directions_b.append(np.bincount(together, minlength=M).astype(float))

    m = 0
    everywhere = invariant([(g, 1) for g in cube()])
    for width, strength, bias in BALLS:
        filters = list(range(m, m + len(bias)))
        w[filters], b[filters] = strength * ball(width), bias
        add(filters, [[e] * len(bias) for e in everywhere], [[k] for k in filters])
        m += len(bias)
    width, strength, threshold = SURFACE
    for directions in classes():
        filters = list(range(m, m + len(directions)))
        turns = [turn(directions[0], d) for d in directions]
        w[filters] = [strength * surface(d, width) for d in directions]
        b[filters] = threshold
        basis = invariant(facing(directions[0]))
        add(filters, [[turned(e, g) for g in turns] for e in basis], [filters])
        m += len(directions)
    family = Family(np.array(directions_w), np.array(directions_b))
    for x in (w, b, family.w, family.b):
        x.flags.writeable = False
    return Parameters(w.reshape(M, R, R, R), b, balanced_bias(w, b)), family


def balanced_bias(w: FloatArray, b: FloatArray) -> float:
    """The visible bias under which empty and full surroundings are equally probable."""
    full = TIED * w.reshape(len(w), -1).sum(1)
    return -float((np.logaddexp(0, b + full) - np.logaddexp(0, b)).sum())


# ---- filters -------------------------------------------------------------------------------------------


def ball(width: float) -> FloatArray:
    """(R³,) taps of a Gaussian ball, whose input is 1 if all voxels are on."""
    square = (TAPS**2).sum(1)
    x = np.where(square == 0, 1.0, 0.0) if width == 0 else np.exp(-square / 2 / width**2)
    return x / (TIED * x.sum())


def surface(direction: tuple[int, ...], width: float) -> FloatArray:
    """(R³,) taps in a ball, positive ahead and negative behind; the input at such a surface is 1/2."""
    ahead = np.clip(TAPS @ direction / np.linalg.norm(direction), -1, 1)
    out = np.exp(-(TAPS**2).sum(1) / 2 / width**2) * ahead
    return out / (TIED * np.abs(out).sum())


# ---- symmetries of the cube ----------------------------------------------------------------------------


@cache
def cube() -> tuple[IntArray, ...]:
    """The 48 symmetries: permutations of the axes with signs."""
    rows = np.eye(3, dtype=int)
    return tuple(
        rows[list(p)] * np.array(s)[:, None]
        for p in permutations(range(3))
        for s in product((1, -1), repeat=3)
    )


def classes() -> list[list[tuple[int, ...]]]:
    """Directions of faces, edges and corners."""
    return [[d for d in DIRECTIONS if np.count_nonzero(d) == n] for n in (1, 2, 3)]


def facing(direction: tuple[int, ...]) -> list[Symmetry]:
    """What leaves a surface as it is: turns and mirrors that keep its direction, and those to its opposite
    with a change of sign."""
    signs = [(g, int(np.sign(g @ direction @ direction))) for g in cube()]
    return [(g, s) for g, s in signs if np.array_equal(g @ direction, s * np.array(direction))]


def invariant(symmetries: list[Symmetry]) -> list[FloatArray]:
    """A basis (R³,) of the filters that the symmetries leave as they are, each with its sign."""
    out, left = [], set(range(R**3))
    while left:
        taps = [(_place(g @ TAPS[min(left)]), s) for g, s in symmetries]
        left -= {at for at, _ in taps}
        one = np.bincount([at for at, _ in taps], [s for _, s in taps], R**3)
        if one.any():  # a tap that is turned into itself with the other sign is zero
            out.append(one / np.abs(one).max())
    return out


def turn(source: tuple[int, ...], target: tuple[int, ...]) -> IntArray:
    """A symmetry that leads from one direction to another."""
    return next(g for g in cube() if np.array_equal(g @ source, target))


def turned(x: FloatArray, g: IntArray) -> FloatArray:
    """The filter (R³,) turned by a symmetry."""
    return x[(TAPS @ g + R // 2) @ [R * R, R, 1]]  # where the inverse, which is the transpose, leads


def _place(tap: IntArray) -> int:
    """The number of a tap."""
    return int((tap + R // 2) @ [R * R, R, 1])
