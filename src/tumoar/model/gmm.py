"""The likelihood parameters θ and their sufficient statistics.

Components of all mixtures are concatenated to length Q, in the order of the label table. Every conditional of
θ in Appendix A is a function of `Moments`, which one pass over the voxels computes for any C and Σ.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tumoar.model.bias import HARMONICS, PER_AXIS, gram, phi_sums

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Theta:
    """θ = {γ, μ, Σ, C}: gamma (Q,), mu (Q, N), Sigma (Q, N, N), C (N, 4, 4, 4) with constants clamped."""

    gamma: Array
    mu: Array
    Sigma: Array
    C: Array

    def __post_init__(self) -> None:
        Q, N = np.shape(self.mu)
        shapes = {"gamma": (Q,), "mu": (Q, N), "Sigma": (Q, N, N), "C": (N, PER_AXIS, PER_AXIS, PER_AXIS)}
        _freeze(self, shapes)
        if np.any(self.C[:, 0, 0, 0] != 0):
            raise ValueError("constant coefficients of C must be 0")

    @property
    def N(self) -> int:
        """Number of contrasts."""
        return self.mu.shape[1]

    @property
    def Q(self) -> int:
        """Number of Gaussian components."""
        return self.mu.shape[0]


@dataclass(frozen=True)
class Moments:
    """Sums over voxels weighted by t_i^q: sufficient statistics of θ.

    n (Q,) are the counts N_xg; d (Q, N) and dd (Q, N, N) sums of data and their products; cos (Q, 7, 7, 7) of
    products of cosines; dcos (Q, N, 4, 4, 4) of data times basis functions.
    """

    n: Array
    d: Array
    dd: Array
    cos: Array
    dcos: Array

    def __post_init__(self) -> None:
        Q, N = np.shape(self.d)
        shapes = {
            "n": (Q,),
            "d": (Q, N),
            "dd": (Q, N, N),
            "cos": (Q, HARMONICS, HARMONICS, HARMONICS),
            "dcos": (Q, N, PER_AXIS, PER_AXIS, PER_AXIS),
        }
        _freeze(self, shapes)

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def scaled(self, by: float) -> Moments:
        """Moments with all voxel weights multiplied by `by`."""
        return self if by == 1 else Moments(*(by * getattr(self, f.name) for f in fields(self)))

    @cached_property
    def gram(self) -> Array:
        """(Q, 64, 64) Σ t φφᵀ."""
        return gram(self.cos)

    def subtract_bias(self, C: Array) -> tuple[Array, Array]:
        """Σ t (d − Cφ), (Q, N), and Σ t (d − Cφ)(d − Cφ)ᵀ, (Q, N, N)."""
        Q, N = self.d.shape
        c = C.reshape(N, -1)
        first = self.d - phi_sums(self.cos) @ c.T
        cross = self.dcos.reshape(Q, N, -1) @ c.T
        second = self.dd - cross - np.swapaxes(cross, 1, 2) + c @ self.gram @ c.T
        return first, second

    def scatter(self, mu: Array, C: Array) -> Array:
        """Σ t (d − Cφ − μ)(d − Cφ − μ)ᵀ, (Q, N, N)."""
        first, second = self.subtract_bias(C)
        cross = first[:, :, None] * mu[:, None, :]
        outer = mu[:, :, None] * mu[:, None, :]
        return second - cross - np.swapaxes(cross, 1, 2) + self.n[:, None, None] * outer


def _freeze(value: Theta | Moments, shapes: dict[str, tuple[int, ...]]) -> None:
    """Copy to read-only float64 arrays; check that they are finite and have these shapes."""
    for name, shape in shapes.items():
        array = np.array(getattr(value, name), np.float64)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite with shape {shape}, got shape {array.shape}")
        array.flags.writeable = False
        object.__setattr__(value, name, array)
