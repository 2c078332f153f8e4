"""Training shapes: cropped binary maps, windows of them, and noise that corrupts a window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter
from scipy.special import ndtr

from tumoar.numerics.convolve import REACH

ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """A binary map, cropped to its bounding box, out of a map of `places` voxels.

    `patient` groups time points of one person.
    """

    name: str
    patient: str
    v: ByteArray
    places: int

    @property
    def volume(self) -> int:
        """Number of voxels (mm³: training maps have 1 mm voxels)."""
        return int(self.v.sum())


def crop_shape(name: str, mask: npt.NDArray) -> Shape | None:
    """Crop a mask to its bounding box; None if empty."""
    places = np.nonzero(mask)
    if not len(places[0]):
        return None
    box = tuple(slice(int(p.min()), int(p.max()) + 1) for p in places)
    v = np.ascontiguousarray(mask[box] != 0, np.uint8)
    v.flags.writeable = False
    return Shape(name, patient_of(name), v, int(np.size(mask)))


def patient_of(name: str) -> str:
    """Patient of a label map: a name that ends in -NNN is one of several time points."""
    return re.sub(r"-\d{3}$", "", name)


def split_by_patient(
    shapes: Iterable[Shape], held_out: int, seed: int
) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Split shapes into those for training and those of `held_out` patients."""
    shapes = tuple(shapes)
    patients = sorted({s.patient for s in shapes})
    kept = set(np.random.default_rng(seed).permutation(patients)[:held_out])
    return tuple(s for s in shapes if s.patient not in kept), tuple(s for s in shapes if s.patient in kept)


def draw_window(shapes: Sequence[Shape], size: int, margin: int, rng: np.random.Generator) -> ByteArray:
    """Draw a cube of size + 2 REACH voxels from a random shape, in one of 8 flips.

    Its center is uniform in the shape's box expanded by `margin`, to include empty surroundings.
    """
    v = shapes[int(rng.integers(len(shapes)))].v
    corner = np.array([rng.integers(-margin, n + margin + 1) for n in v.shape]) - (size // 2 + REACH)
    return flip(crop(v, corner, size + 2 * REACH), rng)


def flip(v: ByteArray, rng: np.random.Generator) -> ByteArray:
    """v in one of its 8 flips."""
    flips = tuple(slice(None, None, -1 if rng.integers(2) else 1) for _ in range(3))
    return np.ascontiguousarray(v[flips])


def crop(v: ByteArray, corner: npt.NDArray[np.integer], size: int) -> ByteArray:
    """Crop a cube from v at `corner`; zero outside v."""
    out = np.zeros((size,) * 3, np.uint8)
    source = tuple(slice(max(0, c), max(0, min(n, c + size))) for c, n in zip(corner, v.shape))
    part = v[source]
    if part.size:
        out[tuple(slice(s.start - c, s.start - c + m) for s, c, m in zip(source, corner, part.shape))] = part
    return out


def draw_flips(
    shape: Sequence[int], rate: float, grain: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Draw a fraction `rate` of voxels to flip: independent, or blobs smoothed by `grain` voxels."""
    if grain == 0:
        return rng.random(shape) < rate
    field = gaussian_filter(rng.standard_normal(shape, np.float32), grain, mode="wrap")
    return ndtr(field / field.std()) < rate
