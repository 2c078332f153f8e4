"""Core and whole tumor of a result with their votes: what a calibration is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.border import Border, find_border, omitted

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

LEAST_PART = 0.1
"""cm³; smaller parts that the outline omits are specks."""


@dataclass(frozen=True, eq=False)
class Tumor:
    """Outlines and vote fractions of core and whole tumor, and the brain, on one grid."""

    core: Mask
    whole: Mask
    core_votes: Field
    whole_votes: Field
    brain: Mask
    spacing: tuple[float, float, float]

    def border(self, name: str) -> Border | None:
        """Border of "core" or "whole"; None if it is empty."""
        outline, votes = (self.core, self.core_votes) if name == "core" else (self.whole, self.whole_votes)
        if not outline.any():
            return None
        return find_border(outline, votes, self.brain, self.spacing)

    def omitted_parts(self) -> npt.NDArray[np.int32]:
        """Parts of the voted tumor that the outline omits, numbered from 1; specks are left out."""
        voted = (self.whole_votes > 0.5) & omitted(self.whole, self.whole_votes)
        if not voted.any():
            return np.zeros(voted.shape, np.int32)
        parts, count = ndi.label(voted, np.ones((3, 3, 3)))
        sizes = np.bincount(parts.ravel(), minlength=count + 1) * np.prod(self.spacing) / 1000
        keeps = sizes >= LEAST_PART
        keeps[0] = False
        return np.asarray((np.cumsum(keeps) * keeps)[parts], np.int32)
