"""What stands for the brain where nothing else is known, as below tumor that was erased."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.vocabulary.labels import LabelTable


def structure_under(
    table: LabelTable, l: npt.NDArray[np.integer], where: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """(n,) position of the first structure of the brain for every voxel of a mask (X, Y, Z).

    If it has a mirror, the one on the side of the voxel: sides meet midway between their centers in `l`.
    """
    first = int(np.flatnonzero(table.in_brain)[0])
    out = np.full(int(where.sum()), first, np.uint8)
    mirror = int(table.mirrored[first])
    if mirror == first:
        return out
    sides = (table.structures[first].side, table.structures[mirror].side)
    centers = []
    for side in sides:
        columns = [k for k, s in enumerate(table.structures) if s.in_brain and s.side == side]
        found = np.argwhere(np.isin(l, columns))
        if not len(found):
            return out
        centers.append(found.mean(0))
    along = centers[1] - centers[0]
    out[(np.argwhere(where) - (centers[0] + centers[1]) / 2) @ along > 0] = mirror
    return out
