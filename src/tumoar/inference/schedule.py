"""Schedule of Algorithm 1: the voxels that a sweep draws.

In the paper every sweep draws tumor in the whole brain. Here most sweeps draw it only in a region around
tumor that was likely in the last full sweep, and keep z and y elsewhere. The region follows the chain during
the burn-in and is fixed afterwards. A sweep that draws a fixed set of variables given all others leaves the
posterior invariant; a region that followed the chain while samples are counted would not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter

from tumoar.vocabulary.config import GibbsConfig

Level = npt.NDArray[np.uint8]

MARGIN = 5
"""Margin of the active region around likely tumor, in voxels."""


@dataclass(frozen=True)
class Schedule:
    """Sweeps 1, 1 + `full_every`, … are full; the first `burn_in` sweeps are not counted.

    During the burn-in, rows outside the region are drawn in every `rest_every`-th sweep between full ones,
    and keep their l and t in the others. Sweeps n, 2n, … with n = `nodes_every` move the nodes, and draw all
    rows; with 0, nodes never move.
    """

    full_every: int = 1
    rest_every: int = 1
    burn_in: int = 0
    nodes_every: int = 0

    @classmethod
    def from_settings(cls, config: GibbsConfig) -> Schedule:
        """The schedule that the settings ask for."""
        return cls(config.full_every, config.rest_every, config.burn_in, config.nodes_every)

    def is_full(self, sweep: int) -> bool:
        """Whether the sweep draws tumor in the whole brain."""
        return self._since_full(sweep) == 0

    def finds_region(self, sweep: int) -> bool:
        """Whether the sweep determines the active region of the following ones."""
        return self.full_every > 1 and self.is_full(sweep) and sweep <= self.burn_in

    def may_rest(self, sweep: int) -> bool:
        """Whether rows outside the region may keep their values."""
        return self.rest_every > 1 and not self.is_full(sweep) and sweep <= self.burn_in

    def draws_rest(self, sweep: int) -> bool:
        """Whether the sweep draws the rows outside the region."""
        return self._since_full(sweep) % self.rest_every == 0

    def moves_nodes(self, sweep: int) -> bool:
        """Whether the sweep moves the nodes of the mesh."""
        return self.nodes_every > 0 and sweep % self.nodes_every == 0

    def _since_full(self, sweep: int) -> int:
        return (sweep - 1) % self.full_every


def find_active_region(likely: Level, drawn: Level, allowed: npt.NDArray[np.bool_]) -> Level:
    """Highest level (1 tumor, 2 core) within MARGIN voxels along each axis; 0 where not `allowed`.

    Levels are those that were `likely` or `drawn` in a full sweep.
    """
    likely = np.maximum(likely, drawn)
    out = np.zeros_like(likely)
    some = [np.flatnonzero(np.any(likely, axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
    if len(some[0]):
        box = tuple(slice(max(0, i[0] - MARGIN), i[-1] + MARGIN + 1) for i in some)
        out[box] = maximum_filter(likely[box], 2 * MARGIN + 1)
    return np.where(allowed, out, np.uint8(0))
