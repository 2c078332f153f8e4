"""First-order Markov random field: the paper's baseline (section 4.1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tumoar.model.shape.base import BoolArray
from tumoar.numerics.neighbors import count_neighbors


@dataclass(frozen=True)
class FirstOrderMRF:
    """p(v) ∝ exp(level Σ v_i − β Σ |v_i − v_j|) over pairs of the 26-neighborhood; v is 0 outside its grid.

    The paper has no level. Neighbors depend on each other, so voxels are drawn in 8 colors; voxels of one
    color are not neighbors.
    """

    beta: float
    level: float = 0.0
    colors: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if not self.beta >= 0:
            raise ValueError(f"beta must be at least 0, got {self.beta}")

    def field(self, v: BoolArray, region: BoolArray, key: int) -> npt.NDArray[np.float32]:
        """level + β Σ_j (2 v_j − 1) over the 26 neighbors j."""
        n = count_neighbors(v, region)
        return np.where(region, np.float32(self.level) + np.float32(self.beta) * (2 * n - 26), np.float32(0))

    def energy(self, v: BoolArray) -> float:
        """−log p(v) up to a constant; pairs include the zeros around the grid."""
        x = np.pad(v, 1).astype(np.int8)
        pairs = 0
        for offset in np.ndindex(3, 3, 3):
            d = np.array(offset) - 1
            if tuple(d) <= (0, 0, 0):  # each pair once
                continue
            here = tuple(slice(max(0, -s), n - max(0, s)) for s, n in zip(d, x.shape))
            there = tuple(slice(max(0, s), n - max(0, -s)) for s, n in zip(d, x.shape))
            pairs += int((x[here] != x[there]).sum())
        return self.beta * pairs - self.level * int(np.count_nonzero(v))
