"""Quality checks of input images: errors, or notes for the reviewer.

Checks take voxel values and the name of the contrast for messages. `brain` is a brain mask, if known; without
it, checks use the whole image and weaker criteria.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.numerics.threads import map_threads
from tumoar.vocabulary.errors import ChannelError
from tumoar.vocabulary.notes import Note

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Kind = Literal["MR", "CT", "labels"]

FEWEST = 32  # voxels along an axis
FEWEST_THICK, LEAST_COVER = 16, 96.0  # for thick slices: their minimum number and coverage in mm
THICK = 6.0  # mm
LEAST_VALUE, MOST_VALUE = 1e-30, 1e30  # range of single precision
MOST_UNUSABLE = 0.05  # fraction of the brain that may be missing, zero or negative
MOST_SATURATED = 0.01  # fraction of tissue at one maximum
MOST_LABELS = 60
AIR, TISSUE, CLIP = -500, (-200, 300), 3071  # HU
LEAST_PRESENT = 0.01  # minimum fraction of air and of tissue in CT
SAME = 0.999  # correlation
PRODUCTS = {"FLAIR2": ("FLAIR", "T2")}  # contrasts computed from two others


def check_image(image: Image, name: str, kind: Kind, brain: Mask | None = None) -> list[Note]:
    """Run all checks of one image as contrast `name`, or as a label map."""
    try:
        check_size(image.grid, name)
        return [*image.notes, *note_thickness(image.grid), *_check_values(image.data, name, kind, brain)]
    except ChannelError as refusal:
        raise ChannelError(
            refusal.id, refusal.what, file=image.source or None, found=refusal.found, do=refusal.do
        ) from None


def _check_values(data: Array, name: str, kind: Kind, brain: Mask | None) -> list[Note]:
    notes = check_finite(data, name, brain)
    check_signal(data, name, brain)
    if kind != "labels":
        check_not_labels(data, name)
    if kind == "MR":
        check_not_ct(data, name)
        notes += check_positive(data, name, brain) + note_saturation(data)
    if kind == "CT":
        check_hounsfield(data, name)
        notes += note_clipping(data)
    return notes


# ---- size --------------------------------------------------------------------------------------------------


def check_size(grid: Grid, name: str) -> None:
    """B19: enough voxels on every axis, or enough thick slices to cover a head."""
    for count, spacing in zip(grid.shape, grid.spacing):
        if count < FEWEST and not (count >= FEWEST_THICK and count * spacing >= LEAST_COVER):
            raise ChannelError(
                "B19",
                f"{name} is too small",
                found="×".join(map(str, grid.shape)),
                do="give the whole 3-D image",
            )


def note_thickness(grid: Grid) -> list[Note]:
    """B20: thick slices."""
    thickest = float(grid.spacing.max())
    return [Note("B20", f"thick slices: {thickest:.3g} mm")] if thickest > THICK else []


# ---- values ------------------------------------------------------------------------------------------------


def check_finite(data: Array, name: str, brain: Mask | None = None) -> list[Note]:
    """B22: voxels without a value are masked; too many in the brain, or all voxels, are an error."""
    if data.dtype.kind != "f":
        return []
    missing = ~np.isfinite(data if brain is None else data[brain])
    share = _fraction(missing)
    if share > MOST_UNUSABLE if brain is not None else missing.all():
        raise ChannelError(
            "B22",
            f"{name} has no value in {_percent(share)} of the {_place(brain)}",
            do="export the image again",
        )
    known = _select_finite(data)
    largest = max(abs(float(known.min(initial=0))), abs(float(known.max(initial=0))))
    if largest and not LEAST_VALUE <= largest <= MOST_VALUE:
        found = f"up to {largest:.3g}"
        raise ChannelError(
            "B22", f"values of {name} are not intensities", found=found, do="export the image again"
        )
    return [Note("B22", f"no value in {_percent(share)} of the {_place(brain)}: masked")] if share > 0 else []


def check_signal(data: Array, name: str, brain: Mask | None = None) -> None:
    """B23: an image must have more than one value."""
    values = _select_finite(data if brain is None else data[brain])
    if values.size == 0 or values.min() == values.max():
        found = f"{values.flat[0]:g} everywhere" if values.size else "no values"
        raise ChannelError("B23", f"no signal in {name}", found=found, do="give another image")


def check_positive(data: Array, name: str, brain: Mask | None = None) -> list[Note]:
    """B24, B25: MR is positive; a few zeros and negatives are masked, many in the brain are an error.

    Without a brain mask, zeros may be background; then only negatives among non-zero voxels count.
    """
    values = _select_finite(data[brain] if brain is not None else data[data != 0])
    share = _fraction(values <= 0)
    if share > MOST_UNUSABLE:
        what = "zero or negative" if brain is not None else "negative"
        raise ChannelError(
            "B24",
            f"{name} is {what} in {_percent(share)} of the {_place(brain)}",
            do="give the unprocessed image",
        )
    negative = int(np.count_nonzero(_select_finite(data) < 0)) if data.dtype.kind != "u" else 0
    return [Note("B25", f"{negative} negative voxels: masked")] if negative else []


def note_saturation(data: Array) -> list[Note]:
    """B26: many voxels at one maximum."""
    signal = _select_finite(data[data != 0])
    share = _fraction(signal == signal.max(initial=0))
    return (
        [Note("B26", f"saturated: {_percent(share)} of the signal at one maximum")]
        if share > MOST_SATURATED
        else []
    )


# ---- kind --------------------------------------------------------------------------------------------------


def guess_kind(data: Array) -> Kind:
    """Guess the kind of image from its values."""
    return "labels" if is_label_map(data) else "CT" if has_air(data) else "MR"


def check_not_ct(data: Array, name: str) -> None:
    """B27: CT given as MR."""
    if has_air(data):
        raise ChannelError(
            "B27",
            f"{name} looks like CT",
            found=f"values {_range(data)}",
            do="give it as CT, or give another image",
        )


def check_hounsfield(data: Array, name: str) -> None:
    """B27: MR given as CT, or CT not in Hounsfield units."""
    if not has_air(data) and not _is_stripped_ct(data):
        raise ChannelError(
            "B27",
            f"{name} does not look like CT in Hounsfield units",
            found=f"values {_range(data)}, no air",
            do="give the original CT",
        )


def note_clipping(data: Array) -> list[Note]:
    """B28: metal and fillings at or above the upper end of the CT scale."""
    clipped = int(np.count_nonzero(data >= CLIP))
    return [Note("B28", f"{clipped} voxels at {CLIP} HU or above: clipped")] if clipped else []


def check_not_labels(data: Array, name: str) -> None:
    """B29: a label map given as an image."""
    if is_label_map(data):
        raise ChannelError(
            "B29", f"{name} looks like a label map", found=f"values {_range(data)}", do="give the scan"
        )


def is_label_map(data: Array) -> bool:
    """Whether there are only a few distinct values, all integers."""
    values = data.ravel(order="K")
    return _has_few_integers(values[:: max(1, values.size // 100_000)]) and _has_few_integers(values)


def has_air(data: Array) -> bool:
    """Whether there are air and soft tissue, as in a head CT."""
    if data.dtype.kind == "u":
        return False
    soft = (data > TISSUE[0]) & (data < TISSUE[1])
    return _fraction(data < AIR) >= LEAST_PRESENT and _fraction(soft) >= LEAST_PRESENT


def _is_stripped_ct(data: Array) -> bool:
    """Whether non-zero values are in the range of brain in CT."""
    values = _select_finite(data)
    values = values[values != 0]
    if not 0 < values.size < 0.7 * data.size:
        return False
    low, median, high = np.percentile(values, [0.5, 50, 99.5])
    return bool(low > -100 and 10 < median < 60 and high < 200)


def _has_few_integers(values: Array) -> bool:
    values = _select_finite(values)
    if values.dtype.kind == "f" and not all(
        np.array_equal(part, np.rint(part)) for part in np.array_split(values, 1 + values.size // 2**24)
    ):
        return False
    if values.size == 0 or float(values.max()) - float(values.min()) >= 2**16:
        return bool(np.unique(values).size <= MOST_LABELS)
    steps = (values - values.min()).astype(np.uint16)  # may wrap around in a short type, but is one to one
    return bool(np.count_nonzero(np.bincount(steps)) <= MOST_LABELS)


# ---- between images ----------------------------------------------------------------------------------------


def check_distinct(images: Mapping[str, Array], brain: Mask | None = None) -> None:
    """B30: no image twice, and no product together with both its factors; all images on one grid."""
    for product, factors in PRODUCTS.items():
        if {product, *factors} <= set(images):
            raise ChannelError(
                "B30",
                f"{product} adds nothing to {' and '.join(factors)}",
                do=f"omit {product} or one of them",
            )
    pairs = list(combinations(images, 2))
    found = map_threads(lambda pair: _correlation(images[pair[0]], images[pair[1]], brain), pairs)
    for (a, b), correlation in zip(pairs, found):
        if correlation > SAME:
            raise ChannelError(
                "B30",
                f"{a} and {b} are the same image",
                found=f"correlation {correlation:.4f}",
                do="give each image once",
            )


def _correlation(a: Array, b: Array, brain: Mask | None) -> float:
    """Correlation in the brain, or where either image is non-zero; 0 if undefined.

    Every second voxel along each axis tells the same as all.
    """
    a, b = (v[::2, ::2, ::2] for v in (a, b))
    used = (a != 0) | (b != 0) if brain is None else brain[::2, ::2, ::2]
    x, y = a[used].astype(np.float64), b[used].astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if x.size < 2 or x.min() == x.max() or y.min() == y.max():
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


# ---- helpers -----------------------------------------------------------------------------------------------


def _select_finite(data: Array) -> Array:
    if data.dtype.kind != "f":
        return data
    is_finite = np.isfinite(data)
    return data if is_finite.all() else data[is_finite]


def _fraction(flags: Mask) -> float:
    return float(np.count_nonzero(flags)) / max(1, flags.size)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _place(brain: Mask | None) -> str:
    return "image" if brain is None else "brain"


def _range(data: Array) -> str:
    values = _select_finite(data)
    return f"{values.min():g}…{values.max():g}" if values.size else "none"
