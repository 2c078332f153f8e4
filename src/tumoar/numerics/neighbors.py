"""Counts over the 26-neighborhood of voxels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.jit import kernel
from tumoar.numerics.threads import run_blocks


def count_neighbors(v: npt.NDArray[np.bool_], region: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """Count the set neighbors (of 26) of each voxel in `region`, 0 elsewhere; v is 0 outside its grid."""
    out = np.zeros(v.shape, np.int8)
    run_blocks(_count_neighbors, len(out), np.pad(v, 1).astype(np.int8), region, out)
    return out


@kernel(nogil=True)
def _count_neighbors(first, last, v, region, out):
    _, n1, n2 = out.shape
    for i in range(first, last):
        column = np.empty(n2 + 2, np.int8)
        for j in range(n1):
            if not region[i, j].any():
                continue
            column[:] = 0
            for a in range(i, i + 3):
                for b in range(j, j + 3):
                    row = v[a, b]
                    for k in range(n2 + 2):
                        column[k] += row[k]
            for k in range(n2):
                if region[i, j, k]:
                    out[i, j, k] = column[k] + column[k + 1] + column[k + 2] - v[i + 1, j + 1, k + 1]
