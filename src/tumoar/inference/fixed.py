"""Tumor that the user has fixed: z and y (X, Y, Z) are 0 or 1, or -1 where they are sampled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.model.joint import Labels
from tumoar.vocabulary.labels import LabelTable

Field = npt.NDArray[np.float32]
Fixed = npt.NDArray[np.int8]


def extend_to_core(z: Fixed | None, y: Fixed | None) -> Fixed | None:
    """Fix z at 1 where it is free and y is fixed at 1: core lies inside tumor."""
    if y is None or not (y == 1).any():
        return z
    free = np.full_like(y, -1) if z is None else z
    return np.where((y == 1) & (free < 0), np.int8(1), free)


def apply_fixed(labels: Labels, z: Fixed | None, y: Fixed | None, table: LabelTable) -> Labels:
    """Set z and y to their fixed values; a cavity stays in core, core in tumor, tumor in the brain."""
    if z is None and y is None:
        return labels
    brain = table.in_brain[labels.l]
    new_z = labels.z if z is None else np.where(z >= 0, z, labels.z)
    new_z = (new_z * brain).astype(np.uint8)
    new_y = labels.y if y is None else np.where(y >= 0, y, labels.y)
    new_y = (new_y * new_z).astype(np.uint8)
    if table.cavity is None:
        return Labels(labels.l, new_z, new_y)
    under = np.uint8(np.flatnonzero(table.in_brain)[0])
    return Labels(np.where((labels.l == table.cavity) & (new_y == 0), under, labels.l), new_z, new_y)


def fix_field(field: Field, fixed: Fixed | None) -> Field:
    """Set the field to ±∞ where z or y is fixed (in place)."""
    if fixed is not None:
        field[fixed == 1] = np.inf
        field[fixed == 0] = -np.inf
    return field
