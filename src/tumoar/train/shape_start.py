"""Initial model of shape training, and the family of models that training chooses from.

Tumors have no preferred direction, so the model is invariant to the 48 symmetries of the cube, which permute
its filters. There are two kinds of filters. *Balls* are symmetric; those of one kind share their taps and
differ in their biases, so that together they form a nonlinear function of their input. *Surfaces* face one of
26 directions (6 faces, 12 edges, 8 corners of a cube) and are odd; those of a class are rotations of each
other. All other taps and biases are free: training updates 196 parameters instead of 13,761. In the sampler,
opposite surfaces and balls of one kind share their sums: 16 correlations instead of 40.
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
Symmetry = tuple[IntArray, int]  # a signed permutation (3, 3) of the axes; its sign for a filter
TIED = 8  # voxels that share one free tap

# Initial kinds of balls: width in taps of 2 mm (0: one tap), strength in nats (input with all voxels on minus
# that with none), biases. The first are majority votes of 2³ voxels: with the visible bias they form a nearly
# quadratic function of the number of voxels that are on, like a Markov random field of the 26 neighbors. The
# second responds to a wider ball that is empty or nearly so. The third is weak, to be determined by training.
BALLS = (
    (0.0, 4.0, (-1.16, -1.38, -1.67, -1.96, -2.18)),
    (1.3, -25.0, (-0.8,)),
    (1.0, 1.5, (-0.2, -0.36, -0.51, -0.67, -0.83, -0.99, -1.14, -1.3)),
)
# Surfaces: width, strength (input at such a surface minus that at the opposite one), bias. Balls make small
# shapes shrink, like surface tension; surfaces favor large, smooth boundaries.
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
    """Directions in parameter space: w (n, M, R³) with b (n, M), and the visible bias."""

    w: FloatArray
    b: FloatArray

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
def build_first_model() -> tuple[Parameters, Family]:
    """Initial model, with equally probable empty and full surroundings, and its family."""
    w, b = np.zeros((M, R**3)), np.zeros(M)
    directions_w: list[FloatArray] = []
    directions_b: list[FloatArray] = []

    def add(filters: list[int], basis: list[list[FloatArray]], biases: list[list[int]]) -> None:
        """Add directions: basis vectors of the taps of some filters, and biases."""
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
    everywhere = invariant_basis([(g, 1) for g in cube_symmetries()])
    for width, strength, bias in BALLS:
        filters = list(range(m, m + len(bias)))
        w[filters], b[filters] = strength * ball(width), bias
        add(filters, [[e] * len(bias) for e in everywhere], [[k] for k in filters])
        m += len(bias)
    width, strength, threshold = SURFACE
    for directions in direction_classes():
        filters = list(range(m, m + len(directions)))
        turns = [find_rotation(directions[0], d) for d in directions]
        w[filters] = [strength * surface(d, width) for d in directions]
        b[filters] = threshold
        basis = invariant_basis(stabilizer(directions[0]))
        add(filters, [[rotate(e, g) for g in turns] for e in basis], [filters])
        m += len(directions)
    family = Family(np.array(directions_w), np.array(directions_b))
    for x in (w, b, family.w, family.b):
        x.flags.writeable = False
    return Parameters(w.reshape(M, R, R, R), b, balance_bias(w, b)), family


def balance_bias(w: FloatArray, b: FloatArray) -> float:
    """Visible bias for which empty and full surroundings are equally probable."""
    full = TIED * w.reshape(len(w), -1).sum(1)
    return -float((np.logaddexp(0, b + full) - np.logaddexp(0, b)).sum())


# ---- filters -------------------------------------------------------------------------------------------


def ball(width: float) -> FloatArray:
    """(R³,) taps of a Gaussian ball, with input 1 if all voxels are on."""
    square = (TAPS**2).sum(1)
    x = np.where(square == 0, 1.0, 0.0) if width == 0 else np.exp(-square / 2 / width**2)
    return x / (TIED * x.sum())


def surface(direction: tuple[int, ...], width: float) -> FloatArray:
    """(R³,) taps in a ball, positive in front and negative behind; the input at such a surface is 1/2."""
    ahead = np.clip(TAPS @ direction / np.linalg.norm(direction), -1, 1)
    out = np.exp(-(TAPS**2).sum(1) / 2 / width**2) * ahead
    return out / (TIED * np.abs(out).sum())


# ---- symmetries of the cube ----------------------------------------------------------------------------


@cache
def cube_symmetries() -> tuple[IntArray, ...]:
    """The 48 symmetries of the cube: signed permutations of the axes."""
    rows = np.eye(3, dtype=int)
    return tuple(
        rows[list(p)] * np.array(s)[:, None]
        for p in permutations(range(3))
        for s in product((1, -1), repeat=3)
    )


def direction_classes() -> list[list[tuple[int, ...]]]:
    """Directions of faces, edges and corners."""
    return [[d for d in DIRECTIONS if np.count_nonzero(d) == n] for n in (1, 2, 3)]


def stabilizer(direction: tuple[int, ...]) -> list[Symmetry]:
    """Symmetries that leave a surface invariant: those that preserve its direction, and, with a change of
    sign, those that reverse it."""
    signs = [(g, int(np.sign(g @ direction @ direction))) for g in cube_symmetries()]
    return [(g, s) for g, s in signs if np.array_equal(g @ direction, s * np.array(direction))]


def invariant_basis(symmetries: list[Symmetry]) -> list[FloatArray]:
    """Basis (R³,) of the filters that are invariant under the symmetries with their signs."""
    out, left = [], set(range(R**3))
    while left:
        taps = [(_tap_index(g @ TAPS[min(left)]), s) for g, s in symmetries]
        left -= {at for at, _ in taps}
        one = np.bincount([at for at, _ in taps], [s for _, s in taps], R**3)
        if one.any():  # a tap mapped to itself with opposite sign is zero
            out.append(one / np.abs(one).max())
    return out


def find_rotation(source: tuple[int, ...], target: tuple[int, ...]) -> IntArray:
    """Find a symmetry that maps one direction to another."""
    return next(g for g in cube_symmetries() if np.array_equal(g @ source, target))


def rotate(x: FloatArray, g: IntArray) -> FloatArray:
    """Apply a symmetry to a filter (R³,)."""
    return x[(TAPS @ g + R // 2) @ [R * R, R, 1]]  # the inverse of g is its transpose


def _tap_index(tap: IntArray) -> int:
    """Index of a tap."""
    return int((tap + R // 2) @ [R * R, R, 1])
