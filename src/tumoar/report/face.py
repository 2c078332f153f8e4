"""Remove the face from the images of a report; brain, eyes and optic nerves with their surroundings stay.

A rendering of a whole head at 1 mm can identify a person. Skin, nose, lips, ears and eyelids are removed; of
the orbits, only the eyes and what lies behind their front stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.distance import distance_to
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.result.segmentation import Segmentation

Mask = npt.NDArray[np.bool_]

AROUND_BRAIN = 8.0  # mm: meninges and most of the skull, not the skin
IN_FRONT = 4.0  # mm, in front of the center of the eyes
AROUND_ORBIT = 6.0  # mm: fat and muscles around eyes and nerves
BEYOND = 0.1
"""An image with less than this fraction outside the shown region is already stripped."""


def shown(result: Segmentation) -> Mask:
    """(X, Y, Z) region of whole heads that a report shows."""
    spacing = tuple(result.case.grid.spacing.tolist())
    brain = result.table.in_brain[result.votes.l] | (result.votes.z == 1) | _atlas_brain(result)
    eyes = _structures(result, "eye tissue", "eye fluid")
    nerves = _structures(result, "optic nerve", "optic chiasm")
    front = _in_front(result, eyes)
    margin = np.where(front, IN_FRONT, AROUND_BRAIN)
    near = distance_to(ndi.binary_fill_holes(brain), spacing) <= margin
    orbit = distance_to(eyes | nerves, spacing) <= AROUND_ORBIT
    return near | eyes | nerves | (orbit & ~front)


def without_face(result: Segmentation) -> Mask:
    """(N, X, Y, Z) region of each image that a report shows: everything if it is already stripped."""
    mask = shown(result)
    bare = [result.case.skull_stripped and _is_bare(valid, mask) for valid in result.case.valid]
    return np.stack([np.ones_like(mask) if whole else mask for whole in bare])


def _is_bare(valid: Mask, mask: Mask) -> bool:
    return int((valid & ~mask).sum()) < BEYOND * int((valid & mask).sum())


def _atlas_brain(result: Segmentation) -> Mask:
    """Brain of the placed atlas, so that parts the fit missed remain visible."""
    placed = result.fit.placed
    alpha = merge_labels(placed.atlas.alpha, placed.atlas.labels.in_brain.astype(int))
    prior = rasterize(placed.reference, placed.tetrahedra, alpha, placed.shape, 0)[..., 1]
    return np.asarray(prior > 0.5)


def _structures(result: Segmentation, *endings: str) -> Mask:
    columns = [k for k, s in enumerate(result.table.structures) if s.name.endswith(endings)]
    return np.isin(result.votes.l, columns)


def _in_front(result: Segmentation, eyes: Mask) -> Mask:
    """(X, Y, Z) region in front of the center of the eyes."""
    grid = result.case.grid
    front = np.linalg.inv(grid.affine[:3, :3]) @ result.placement.matrix[:3, 1]
    front /= np.linalg.norm(front)
    where = np.argwhere(eyes)
    if not len(where):
        return np.zeros(grid.shape, bool)
    along = sum(
        (np.arange(n) * f).reshape([-1 if d == axis else 1 for d in range(3)])
        for axis, (n, f) in enumerate(zip(grid.shape, front))
    )
    return np.asarray(along > (where @ front).mean())
