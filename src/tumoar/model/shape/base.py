"""Interface of shape priors of a binary map v: the tumor map z or the core map y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit

BoolArray = npt.NDArray[np.bool_]


class ShapePrior(Protocol):
    """p(v). Voxels of one color are conditionally independent given the other variables of the field."""

    @property
    def colors(self) -> int:
        """Number of voxel sets that must be drawn sequentially (1 or 8)."""
        ...

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """Log-odds of v_i = 1 given the rest in `region`, 0 elsewhere; v is 0 outside its grid.

        Hidden units, if any, are redrawn; `key` (64 bits) determines the random numbers.
        """
        ...


@dataclass(frozen=True)
class FlatPrior:
    """Independent voxels with log-odds a: the simplified model of section 2.3.2."""

    a: float
    colors: ClassVar[int] = 1

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """a in the region, 0 elsewhere."""
        return np.where(region, np.float32(self.a), np.float32(0))


def select_color(region: BoolArray, color: int, colors: int) -> BoolArray:
    """Select the voxels of `region` with this color: all, or one of the 8 corners of 2x2x2 blocks."""
    if colors == 1:
        return region
    if colors != 8:
        raise ValueError(f"colors must be 1 or 8, got {colors}")
    out = np.zeros_like(region)
    part = tuple(slice(color >> axis & 1, None, 2) for axis in (2, 1, 0))
    out[part] = region[part]
    return out


def sample_shape(prior: ShapePrior, v: BoolArray, sweeps: int, rng: np.random.Generator) -> BoolArray:
    """Run block-Gibbs sweeps of p(v), without data, starting from v."""
    v = v.copy()
    colors = [select_color(np.ones(v.shape, bool), color, prior.colors) for color in range(prior.colors)]
    for _ in range(sweeps):
        for own in colors:
            u = rng.random(np.count_nonzero(own), np.float32)
            v[own] = u < expit(prior.field(v, own, int(rng.integers(2**63)))[own])
    return v
