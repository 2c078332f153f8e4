"""What the sampler asks of a prior on the shape of a binary map v: the tumor map z, or the core map y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit

BoolArray = npt.NDArray[np.bool_]


class ShapePrior(Protocol):
    """p(v). Voxels of one color are independent given everything else that the field was computed from."""

    @property
    def colors(self) -> int:
        """Into how many sets the voxels are split that must be drawn one after the other (1 or 8)."""
        ...

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """Log-odds of v_i = 1 given the rest on the voxels of `region`, 0 elsewhere; v is 0 outside its grid.

        Hidden units, if there are any, are drawn anew; `key` (64 bits) names the draws.
        """
        ...


@dataclass(frozen=True)
class FlatPrior:
    """Independent voxels with log-odds a: the simplified model of Section 2.3.2."""

    a: float
    colors: ClassVar[int] = 1

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """a on the region."""
        return np.where(region, np.float32(self.a), np.float32(0))


def select_color(region: BoolArray, color: int, colors: int) -> BoolArray:
    """The voxels of `region` with one color: all of them, or the corners of one kind of 2x2x2 blocks."""
    if colors == 1:
        return region
    if colors != 8:
        raise ValueError(f"colors must be 1 or 8, got {colors}")
    out = np.zeros_like(region)
    part = tuple(slice(color >> axis & 1, None, 2) for axis in (2, 1, 0))
    out[part] = region[part]
    return out


def sample_shape(prior: ShapePrior, v: BoolArray, sweeps: int, rng: np.random.Generator) -> BoolArray:
    """v after block-Gibbs sweeps of p(v) alone, without data."""
    v = v.copy()
    colors = [select_color(np.ones(v.shape, bool), color, prior.colors) for color in range(prior.colors)]
    for _ in range(sweeps):
        for own in colors:
            u = rng.random(np.count_nonzero(own), np.float32)
            v[own] = u < expit(prior.field(v, own, int(rng.integers(2**63)))[own])
    return v
