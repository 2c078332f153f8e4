"""Voxels between the order of the page and that of the stored image, exactly.

The page knows one order only: x to the patient's right, y to the front, z upward, x fastest. So it cannot
confuse sides, whatever the storage order of an image.
"""

from __future__ import annotations

import gzip
from base64 import b64decode
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.geometry.orientation import Orientation, to_canonical
from tumoar.geometry.resample import resample
from tumoar.vocabulary.errors import UsageError

Bytes = npt.NDArray[np.uint8]

MOST_VOXELS = 4_000_000
"""Of one stroke."""


def to_stored(runs: Sequence[int], orientation: Orientation) -> npt.NDArray[np.int32]:
    """Voxels (n, 3) in the order of the stored image, from runs (start, length, …) in that of the page."""
    pairs, shape = np.asarray(runs, np.int64), orientation.grid.shape
    if pairs.ndim != 1 or pairs.size % 2 or not pairs.size:
        raise UsageError("review", "a stroke is a list of runs of voxels", do="reload the page")
    starts, lengths = pairs[::2], pairs[1::2]
    last = int(np.prod(shape, dtype=np.int64)) - lengths
    if not ((starts >= 0) & (lengths > 0) & (lengths <= MOST_VOXELS) & (starts <= last)).all():
        raise UsageError("review", "the stroke leaves the image", do="reload the page")
    if lengths.sum() > MOST_VOXELS:
        raise UsageError("review", "the stroke is too large", do="paint it in parts")
    flat = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths)])
    out = np.empty((flat.size, 3), np.int32)
    for axis, flip, index in zip(
        orientation.axes, orientation.flips, np.unravel_index(flat, shape, order="F")
    ):
        out[:, axis] = orientation.native.shape[axis] - 1 - index if flip else index
    return out


def to_page(array: npt.NDArray[np.generic], orientation: Orientation) -> bytes:
    """Bytes of an array in the order of the page; those of a mask are bits, the lowest first."""
    flat = to_canonical(array, orientation).ravel("F")
    if flat.dtype == bool:
        return np.packbits(flat.astype(np.uint8), bitorder="little").tobytes()
    return flat.tobytes()


def picture_on(nifti: str, onto: Grid) -> Bytes:
    """Image of a report (gzipped NIfTI in base64) on other voxels; black outside."""
    import nibabel as nib

    image = nib.Nifti1Image.from_bytes(gzip.decompress(b64decode(nifti)))
    x, y, z = image.shape
    found = resample(np.asarray(image.dataobj), Grid((x, y, z), image.affine), onto)
    return np.rint(np.clip(found, 0, 255)).astype(np.uint8)
