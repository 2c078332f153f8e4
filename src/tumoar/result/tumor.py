"""Core and whole tumor of a result, live or stored, with their votes: what a calibration is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.border import Border, find_border, omitted
from tumoar.result.parts import WHOLE, gtv_is_whole
from tumoar.result.segmentation import Segmentation, tumor_mask

if TYPE_CHECKING:
    from tumoar.result.stored import Stored

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


def tumor_of_segmentation(result: Segmentation) -> Tumor:
    """Tumor of a result in memory, on the grid of its case."""
    core, edema = (tumor_mask(name, result.votes) for name in WHOLE)
    brain = np.asarray(result.table.in_brain[result.votes.l])
    core_votes, votes = (result.tally.fraction(tumor=parts) for parts in (("core",), WHOLE))
    i, j, k = map(float, result.case.grid.spacing)
    return Tumor(core, core | edema, core_votes, votes, brain, (i, j, k))


def tumor_of_stored(result: Stored) -> Tumor:
    """Tumor of a stored result, on the voxels of its reference image."""
    table, labels = result.table, np.asarray(result.labels)
    index = {part.name: part.index for part in table.tumor}
    core, edema = (labels == index[name] for name in WHOLE)
    inside = [s.index for s in table.structures if s.in_brain] + list(index.values())
    gtv = next(o.name for o in table.organs if o.kind == "GTV")
    other = next(o.name for o in table.organs if o.tumor == ("edema",))
    first, second = (np.asarray(result.probability(name), np.float32) for name in (gtv, other))
    core_votes, votes = (first - second, first) if gtv_is_whole(table) else (first, first + second)
    i, j, k = map(float, result.grid.spacing)
    return Tumor(core, core | edema, core_votes, votes, np.isin(labels, inside), (i, j, k))
