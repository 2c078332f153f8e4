"""Which voxels a sweep of Algorithm 1 considers for tumor, and which rest.

The paper considers tumor in the whole brain in every sweep. Here most sweeps consider it only in a region
around tumor that was likely in the last full sweep, and hold z and y elsewhere at their values. The region
follows the chain during the burn-in and is fixed from then on. A sweep that draws a fixed set of variables
given all others leaves the posterior as it is, so that the samples are of the same distribution as with full
sweeps alone; a region that followed the chain while samples are counted would change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter

Level = npt.NDArray[np.uint8]

MARGIN = 5
"""Voxels around likely tumor."""


@dataclass(frozen=True)
class Schedule:
    """Sweeps 1, 1 + `full_every`, … are full; `burn_in` sweeps come before the samples.

    In the burn-in, rows of voxels outside the region are drawn in every `rest_every`-th sweep between full
    ones; l and t of these are held in the others.
    """

    full_every: int = 1
    rest_every: int = 1
    burn_in: int = 0

    def is_full(self, sweep: int) -> bool:
        """Whether tumor is considered everywhere."""
        return self._since_full(sweep) == 0

    def finds_region(self, sweep: int) -> bool:
        """Whether the region of the following sweeps is found in this one."""
        return self.full_every > 1 and self.is_full(sweep) and sweep <= self.burn_in

    def may_rest(self, sweep: int) -> bool:
        """Whether rows outside the region may be held."""
        return self.rest_every > 1 and not self.is_full(sweep) and sweep <= self.burn_in

    def draws_rest(self, sweep: int) -> bool:
        """Whether it is the turn of rows outside the region."""
        return self._since_full(sweep) % self.rest_every == 0

    def _since_full(self, sweep: int) -> int:
        return (sweep - 1) % self.full_every


def find_active_region(likely: Level, drawn: Level, allowed: npt.NDArray[np.bool_]) -> Level:
    """The highest level (1 tumor, 2 core) within MARGIN voxels along each axis, where tumor is allowed.

    A level counts that was `likely` in a full sweep, or was `drawn` in it.
    """
    likely = np.maximum(likely, drawn)
    out = np.zeros_like(likely)
    some = [np.flatnonzero(np.any(likely, axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
    if len(some[0]):
        box = tuple(slice(max(0, i[0] - MARGIN), i[-1] + MARGIN + 1) for i in some)
        out[box] = maximum_filter(likely[box], 2 * MARGIN + 1)
    return np.where(allowed, out, np.uint8(0))
