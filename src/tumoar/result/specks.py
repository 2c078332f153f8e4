"""Specks: small parts of the outline of an organ that is one structure, apart from the organ itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.border import box_around
from tumoar.inference.tally import Votes
from tumoar.vocabulary.labels import LabelTable
from tumoar.vocabulary.organs import expected_organs

Mask = npt.NDArray[np.bool_]

SPECK = 0.03
"""cm³ below which a separate part is a speck: the smallest volume that dose limits know (D0.03cc)."""
MARGIN = 10.0
"""Millimeters around specks in which the nearest tissue is looked for."""

_CORNERS = np.ones((3, 3, 3), bool)


class Parts(NamedTuple):
    """The parts (26 neighbors) of a mask: their number per voxel, 0 for none, and cm³ by number."""

    number: npt.NDArray[np.int32]
    cm3: npt.NDArray[np.floating]

    @property
    def largest(self) -> float:
        """Fraction of the mask in its largest part."""
        return float(self.cm3.max() / self.cm3.sum())

    @property
    def large(self) -> npt.NDArray[np.bool_]:
        """Whether a part is the largest, or no speck."""
        out = self.cm3 >= SPECK
        out[self.cm3.argmax()] = True
        out[0] = False
        return out


def find_parts(mask: Mask, voxel_cm3: float) -> Parts:
    """The parts of a mask."""
    number, count = ndimage.label(mask, _CORNERS)
    cm3 = np.bincount(number.ravel(), minlength=count + 1) * voxel_cm3
    cm3[0] = 0
    return Parts(number, cm3)


def find_specks(table: LabelTable, l: npt.NDArray[np.uint8], voxel_cm3: float) -> Mask:
    """(X, Y, Z) specks of organs that are one structure, in a map of structures l."""
    out = np.zeros(l.shape, bool)
    boxes = ndimage.find_objects(l.astype(np.int16) + 1, table.K)
    for columns in _organs(table):
        found = [boxes[k] for k in columns if boxes[k] is not None]
        if found:
            box = tuple(slice(min(s.start for s in axis), max(s.stop for s in axis)) for axis in zip(*found))
            parts = find_parts(np.isin(l[box], columns), voxel_cm3)
            out[box] |= (parts.number > 0) & ~parts.large[parts.number]
    return out


def fill_specks(table: LabelTable, votes: Votes, specks: Mask, spacing: npt.NDArray[np.float64]) -> Votes:
    """Give the voxels of specks to the nearest tissue: none becomes part of another organ, or stays empty.

    Where tumor is voted, this is a tissue of the brain.
    """
    l = votes.l.copy()
    tissue = np.ones(table.K, bool)
    tissue[[k for columns in _organs(table) for k in columns]] = False
    if table.cavity is not None:
        tissue[table.cavity] = False
    for among, there in ((tissue, votes.z == 0), (tissue & table.in_brain, votes.z == 1)):
        at = specks & there
        if not at.any():
            continue
        box = box_around(at, spacing.tolist(), margin=MARGIN)
        receives = among[votes.l[box]]
        if receives.any():
            nearest = ndimage.distance_transform_edt(
                ~receives, sampling=spacing, return_distances=False, return_indices=True
            )
            l[at] = votes.l[box][tuple(nearest)][at[box]]
    return votes._replace(l=l)


def _organs(table: LabelTable) -> list[list[int]]:
    """Positions of the structures of each organ that is one structure."""
    known = expected_organs()
    return [[table.l(s) for s in o.structures] for o in table.organs if o.name in known and not o.tumor]
