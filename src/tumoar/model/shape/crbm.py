"""Convolutional restricted Boltzmann machine of tumor shape (section 2.1.1).

    E(v, h) = −Σ_m h_m • (w_m ⋆ v) − Σ_m b_m Σ_j h_mj − a Σ_i v_i

with filters tied in 2x2x2 blocks. Forward is a "valid" correlation, backward its adjoint, a "full"
convolution. Voxels near the border of v are connected to fewer hidden units than others. `field` therefore
pads v with zeros and draws all hidden units that reach the region, so that every voxel has all its hidden
units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from tumoar.model.shape.base import BoolArray
from tumoar.numerics.convolve import Filters, M, R, inputs, pack
from tumoar.numerics.convolve_field import draw_field

TIE = 2


@dataclass(frozen=True)
class CRBM:
    """M filters of r³ free taps w (M, r, r, r), hidden biases b (M,), visible bias a."""

    w: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    a: float
    colors: ClassVar[int] = 1

    def __post_init__(self) -> None:
        w, b = (np.array(x, np.float32) for x in (self.w, self.b))
        if w.ndim != 4 or len(set(w.shape[1:])) != 1 or b.shape != w.shape[:1]:
            raise ValueError(f"w must be (M, r, r, r) and b (M,), got {w.shape} and {b.shape}")
        if not (np.isfinite(w).all() and np.isfinite(b).all() and np.isfinite(self.a)):
            raise ValueError("w, b and a must be finite")
        w.flags.writeable = b.flags.writeable = False
        object.__setattr__(self, "w", w)
        object.__setattr__(self, "b", b)
        object.__setattr__(self, "a", float(self.a))

    @property
    def reach(self) -> int:
        """A hidden unit at j is connected to the voxels j to j + reach."""
        return TIE * self.w.shape[1] - 1

    @cached_property
    def full(self) -> npt.NDArray[np.float64]:
        """(M, 2r, 2r, 2r) filters with tied taps expanded to voxels."""
        return self.w.astype(float).repeat(TIE, 1).repeat(TIE, 2).repeat(TIE, 3)

    @cached_property
    def filters(self) -> Filters:
        """The filters in the layout of the fast kernels."""
        return pack(self.w, self.b)

    @property
    def fast(self) -> bool:
        """Whether the fast kernels support this filter size."""
        return self.w.shape == (M, R, R, R)

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """Σ_m (w̃_m ∗ h_m)_i + a with h ~ p(h|v) redrawn, Eq. (4)."""
        if self.fast:
            return draw_field(v, region, self.filters, self.a, key)
        p = self.hidden_probability(np.pad(v, self.reach))
        h = np.random.default_rng(key).random(p.shape) < p
        inner = (slice(self.reach, -self.reach),) * 3
        return np.where(region, self.visible_input(h)[inner], 0).astype(np.float32)

    def hidden_input(self, v: npt.NDArray) -> npt.NDArray[np.floating]:
        """(M, *J) w_m ⋆ v + b_m at the valid positions J of v."""
        if self.fast:
            return np.moveaxis(inputs(v, self.filters), -1, 0)
        return _correlate(v, self.full) + self.b[:, None, None, None]

    def hidden_probability(self, v: npt.NDArray) -> npt.NDArray[np.floating]:
        """(M, *J) p(h_mj = 1 | v)."""
        return expit(self.hidden_input(v))

    def visible_input(self, h: npt.NDArray) -> npt.NDArray[np.float64]:
        """(*V,) log-odds of v_i = 1 given the hidden units h (M, *J)."""
        back = self.full[:, ::-1, ::-1, ::-1]
        return sum(_correlate(np.pad(x, self.reach), w[None])[0] for x, w in zip(h, back)) + self.a

    def energy(self, v: npt.NDArray, h: npt.NDArray) -> float:
        """E(v, h), Eq. (2)."""
        return float(-(h * self.hidden_input(v)).sum() - self.a * v.sum())

    def free_energy(self, v: npt.NDArray) -> float:
        """−log Σ_h exp(−E(v, h)), the high-order random field of section 2.1.1."""
        planes = 16  # per step, to limit memory
        total = 0.0
        for i in range(0, v.shape[0] - self.reach, planes):
            c = self.hidden_input(v[i : i + planes + self.reach])
            total -= float(np.logaddexp(0, c, dtype=np.float64).sum())
        return total - self.a * float(v.sum())

    def free_energy_rise(self, v: npt.NDArray) -> float:
        """Free energy of the zero-padded v minus that of the empty map, per voxel of v."""
        v = np.pad(v, self.reach)
        hidden = np.prod([n - self.reach for n in v.shape])
        empty = -float(hidden) * float(np.logaddexp(0, self.b.astype(float)).sum())
        return (self.free_energy(v) - empty) / max(float(v.sum()), 1.0)


def _correlate(v: npt.NDArray, filters: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(M, *J) w_m ⋆ v at the valid positions J of v; for sizes without fast kernels."""
    shape = np.array(v.shape) - filters.shape[1:] + 1
    out = np.zeros((len(filters), *shape))
    for tap in np.ndindex(filters.shape[1:]):
        part = v[tuple(slice(t, t + n) for t, n in zip(tap, shape))]
        out += filters[(slice(None), *tap)][:, None, None, None] * part
    return out


def sparsify(model: CRBM) -> CRBM:
    """Make hidden units sparse without changing p(v): replace units with positive bias by their complement.

    h → 1 − h turns (w, b) of a filter into (−w, −b) and adds its sum to a.
    """
    on = model.b > 0
    sign = np.where(on, -1, 1).astype(np.float32)
    shift = float(model.full[on].sum())
    return CRBM(model.w * sign[:, None, None, None], model.b * sign, model.a + shift)


def find_surface_filters(model: CRBM) -> BoolArray:
    """(M,) True for odd filters: they respond to surfaces, but not to the interior or exterior."""
    return np.asarray((model.w == -model.w[:, ::-1, ::-1, ::-1]).all((1, 2, 3)))


def soften(model: CRBM, strength: float, level: float, surface: float) -> CRBM:
    """Multiply all parameters by `strength`; add nats to the visible bias and to those of surface filters."""
    if (strength, level, surface) == (1, 0, 0):
        return model
    b = model.b * strength + surface * find_surface_filters(model)
    return CRBM(model.w * np.float32(strength), b, model.a * strength + level)
