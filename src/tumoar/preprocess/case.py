"""Build a `Case` from images: check, register, crop to the head and resample to 1 mm.

Each image is interpolated at most once; images on the grid of the case are not interpolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import (
    CANONICAL_SPACING,
    Case,
    Grid,
    Image,
    Input,
    is_canonical,
    is_valid,
    transform_intensities,
)
from tumoar.geometry.orientation import Orientation, reorient
from tumoar.geometry.resample import resample_mean, resample_valid
from tumoar.numerics.threads import map_threads
from tumoar.preprocess.alignment import IDENTITY, TOLERANCE, Placement, place_by_header, place_by_registration
from tumoar.preprocess.quality import PRODUCTS, check_distinct, check_image
from tumoar.preprocess.register import FINE, Matrix, Prepared, prepare_image
from tumoar.preprocess.skull import decide_stripped, measure_skull
from tumoar.vocabulary.contrasts import Contrast, find_contrast, rank
from tumoar.vocabulary.errors import ChannelError, GeometryError, UsageError
from tumoar.vocabulary.notes import Note

MARGIN = 10.0  # mm kept around the head
TALLEST, ABOVE_SHOULDERS = 220.0, 180.0  # mm below the crown: crop limit; range without shoulders
WORTHWHILE = 1.0  # mm; smaller offsets are not corrected in images that are interpolated anyway
CT_WINDOW, CT_BONE = (-200.0, 300.0), 400.0  # HU window to align CT; bone threshold above its lower end


@dataclass(frozen=True, eq=False)
class _InputImage:
    """An input image, reoriented and prepared for registration."""

    name: str
    contrast: Contrast
    image: Image  # canonical
    orientation: Orientation
    prepared: Prepared


def build_case(
    images: Mapping[str, Image | tuple[Image, Image]],
    *,
    reference: str | None = None,
    register: bool = True,
    skull_stripped: bool | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
) -> Case:
    """Build a case from images, named by contrast.

    A name may end in "-" and a number if a contrast is given more than once ("other-2"). FLAIR2 is given as
    its pair (FLAIR, T2), which is multiplied on the common grid. `reference` (default CT, else T1c) defines
    the space. `register=False` uses the headers, after a check. `skull_stripped` overrides detection, unless
    the images clearly contradict it. `contrasts` is the contrast table (default: that of the package).
    """
    channels = _group_channels(images, contrasts)
    members = [member for factors in channels.values() for member in factors]
    checked = map_threads(partial(_check_and_prepare, contrasts=contrasts), members)
    notes = [note for _, found in checked for note in found]
    given = {item.name: item for item, _ in checked}
    fixed = given[_choose_reference(reference, list(given), contrasts)]

    is_stripped, found = _detect_stripped(fixed, list(given.values()), skull_stripped)
    notes += found
    grid = _case_grid(fixed)
    inputs, values = [], {}
    placements = map_threads(lambda item: _place(fixed, item, register), given.values())
    for item, placement in zip(given.values(), placements):
        notes += placement.notes
        values[item.name], is_interpolated = _resample_to_case(item, placement.to_moving, fixed, grid)
        inputs.append(
            Input(
                name=item.name,
                source=item.image.source,
                grid=item.orientation.native,
                orientation=item.orientation.codes,
                to_reference=np.asarray(np.linalg.inv(placement.to_moving), np.float64),
                is_interpolated=is_interpolated,
                figures=placement.figures,
            )
        )
    # The log of a product is the sum of the logs.
    D = np.zeros((len(channels), *grid.shape), np.float32)
    for channel, factors in zip(D, channels.values()):
        for name, _ in factors:
            channel += values[name]
    check_distinct(dict(zip(channels, D)))
    rows = tuple(find_contrast(_contrast_name(name), contrasts) for name in channels)
    return Case(D, rows, grid, fixed.name, tuple(inputs), is_stripped, tuple(notes))


def resample_to_input(values: npt.NDArray[np.floating], case: Case, name: str) -> npt.NDArray[np.float32]:
    """Resample values from the case's grid to the original grid of an input; 0 outside the case.

    For vote fractions and other quantities that can be interpolated, not for labels. Voxels larger than the
    case's get the mean of the values inside them, so that nothing between thick slices is lost.
    """
    given = case.input(name)
    return resample_mean(values, case.grid, given.grid, given.to_reference)


# ---- names -------------------------------------------------------------------------------------------------


def _group_channels(
    images: Mapping[str, Image | tuple[Image, Image]], contrasts: Mapping[str, Contrast] | None
) -> dict[str, tuple[tuple[str, Image], ...]]:
    """Images of each channel: one, or the two factors of a product."""
    if not images:
        raise UsageError("images", "no image given", do="give at least one contrast")
    channels: dict[str, tuple[tuple[str, Image], ...]] = {}
    for key, image in images.items():
        name = _normalize_name(key, contrasts)
        if name in channels:
            raise UsageError("images", f"{name} is given twice", do=f"name the second one {name}-2")
        if isinstance(image, Image):
            channels[name] = ((name, image),)
            continue
        if name not in PRODUCTS:
            raise UsageError("images", f"{name} is not a product of two images", do="give one image")
        channels[name] = tuple(zip(PRODUCTS[name], image, strict=True))
    members = [name for factors in channels.values() for name, _ in factors]
    for name, factors in channels.items():
        if len(factors) > 1 and any(members.count(factor) > 1 for factor, _ in factors):
            raise ChannelError(
                "B30",
                f"{name} is computed from {' and '.join(factor for factor, _ in factors)}, also given alone",
                do=f"omit {name} or its factors",
            )
    return channels


def _normalize_name(key: str, contrasts: Mapping[str, Contrast] | None) -> str:
    """Spell the contrast of a name as in the contrast table; keep its number."""
    contrast, dash, number = key.partition("-")
    return find_contrast(contrast, contrasts).name + dash + number


def _contrast_name(name: str) -> str:
    return name.partition("-")[0]


def _choose_reference(
    wanted: str | None, names: Sequence[str], contrasts: Mapping[str, Contrast] | None
) -> str:
    """The requested image, or the one whose contrast ranks first."""
    ranks = {n: None if "-" in n else find_contrast(n, contrasts).reference_rank for n in names}
    if wanted is None:
        return min(names, key=lambda name: rank(ranks[name]))
    name = _normalize_name(wanted, contrasts)
    if name not in names:
        raise UsageError("reference", f"reference '{name}' is not given", do=f"use one of {', '.join(names)}")
    return name


# ---- places ------------------------------------------------------------------------------------------------


def _place(fixed: _InputImage, item: _InputImage, may_move: bool) -> Placement:
    """Place by header if images share a grid or a frame of reference, or on request; else register."""
    if item is fixed:
        return Placement(IDENTITY, {})
    ours, theirs = fixed.image.grid, item.image.grid
    frames_known = ours.frame is not None and theirs.frame is not None
    same_frame = frames_known and ours.frame == theirs.frame
    pair = fixed.prepared, item.prepared, item.name, fixed.name
    if frames_known and not same_frame:
        if not may_move:
            raise GeometryError(
                "B33",
                f"{item.name} and {fixed.name} have different frames of reference",
                do="allow registration: omit --no-register",
            )
        placement = place_by_registration(*pair)
        text = f"frame of reference differs from that of {fixed.name}: registered"
        note = Note("B33", text, where=item.name)
        return replace(placement, notes=(*placement.notes, note))
    if same_frame or not may_move:
        return place_by_header(*pair, may_move=may_move)
    if _is_same_grid(ours, theirs):
        slack = TOLERANCE if is_canonical(ours) else WORTHWHILE
        return place_by_header(*pair, may_move=True, slack=slack)
    return place_by_registration(*pair)


# ---- the head ----------------------------------------------------------------------------------------------


def _check_and_prepare(
    member: tuple[str, Image], contrasts: Mapping[str, Contrast] | None
) -> tuple[_InputImage, list[Note]]:
    """Check an image and prepare it for registration; returns it with notes."""
    name, image = member
    contrast = find_contrast(_contrast_name(name), contrasts)
    notes = check_image(image, name, "MR" if contrast.is_mr else "CT")
    turned, orientation = reorient(image)
    # The corner of an image depends in its last bits on the storage order; rounding to 1 µm removes this.
    affine = turned.grid.affine.copy()
    affine[:3, 3] = np.round(affine[:3, 3] * 1024) / 1024
    turned = Image(turned.data, replace(turned.grid, affine=affine), image.source)
    ready = prepare_image(turned, None if contrast.is_mr else CT_WINDOW)
    return _InputImage(name, contrast, turned, orientation, ready), [
        replace(note, where=name) for note in notes
    ]


def _detect_stripped(
    fixed: _InputImage, given: Sequence[_InputImage], requested: bool | None
) -> tuple[bool, list[Note]]:
    """Skull-stripped if any image is: the model needs what all images show."""
    evidence = {
        item.name: measure_skull(
            np.asarray(item.prepared.levels[FINE].data, np.float32),
            item.prepared.valid,
            item.prepared.is_head,
            FINE,
            None if item.contrast.is_mr else CT_BONE,
        )
        for item in given
    }
    stripped = [name for name, e in evidence.items() if e.is_stripped]
    witness = stripped[0] if stripped else fixed.name
    notes = []
    if 0 < len(stripped) < len(given):
        text = "skull-stripped, unlike the other images: all are treated as skull-stripped"
        notes.append(Note("B40", text, where=", ".join(stripped)))
    return decide_stripped(evidence[witness], witness, requested), notes


def _case_grid(fixed: _InputImage) -> Grid:
    """1 mm grid around the head of the reference: its own voxels if these are 1 mm, else along its axes."""
    own = fixed.image.grid
    index = own.index(fixed.prepared.head)
    depth = (index[:, 2].max() - index[:, 2]) * own.spacing[2]
    low, high = index[depth <= ABOVE_SHOULDERS].min(0), index.max(0)
    high[:2] = index[depth <= ABOVE_SHOULDERS, :2].max(0)
    low[2] = index[depth <= TALLEST, 2].min()
    low, high = low - MARGIN / own.spacing, high + MARGIN / own.spacing
    spacing = own.spacing
    if is_canonical(own):
        low = np.floor(low)
    else:
        spacing = np.full(3, CANONICAL_SPACING)
    affine = own.affine.copy()
    affine[:3, :3] *= spacing / own.spacing
    affine[:3, 3] = own.world(low)
    x, y, z = np.ceil((high - low) * own.spacing / spacing).astype(int) + 1
    return Grid((x, y, z), affine, own.frame)


def _resample_to_case(
    item: _InputImage, to_moving: Matrix, fixed: _InputImage, grid: Grid
) -> tuple[npt.NDArray[np.float32], bool]:
    """Transformed intensities on the case's grid (NaN: no data), and whether they were interpolated."""
    own = item.image
    valid = is_valid(own.data, item.contrast)
    is_there = (
        is_canonical(fixed.image.grid)
        and _is_same_grid(own.grid, fixed.image.grid)
        and np.array_equal(to_moving, IDENTITY)
    )
    if is_there:
        start = np.rint(own.grid.index(grid.affine[:3, 3])).astype(int)
        values, seen = (_crop(array, start, grid.shape) for array in (own.data, valid))
    else:
        values, seen = resample_valid(own.data, valid, own.grid, grid, to_moving)
    out = np.full(grid.shape, np.nan, np.float32)
    out[seen] = transform_intensities(values[seen].astype(np.float32), item.contrast)
    return out, not is_there


def _is_same_grid(a: Grid, b: Grid) -> bool:
    return a.shape == b.shape and np.allclose(a.affine, b.affine, rtol=0, atol=1e-4)


def _crop(array: npt.NDArray[np.generic], start: npt.NDArray[np.int64], shape: Sequence[int]) -> npt.NDArray:
    """Crop a box of `shape` from index `start`; zero outside the array."""
    out = np.zeros(shape, array.dtype)
    inner = [slice(max(0, s), max(0, min(n, s + m))) for s, n, m in zip(start, array.shape, shape)]
    outer = tuple(slice(i.start - s, i.stop - s) for i, s in zip(inner, start))
    out[outer] = array[tuple(inner)]
    return out
