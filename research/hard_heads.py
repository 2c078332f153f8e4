"""Heads made harder to place, and images that must not be placed, for `placement_stress.py`.

A hardening takes a case and where its brain is, and returns a case with the motion of the head in the world
that it implies: the reference placement of the hardened head is the motion times that of the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from head_cases import bare_case, shifted
from scipy import ndimage as ndi

from tumoar.geometry.image import Case, Grid
from tumoar.simulate.scanner import rigid_motion

TALLEST, MARGIN = 220, 10
"""mm, as a case is cut from an image: from the crown down at most, and kept around the head."""
BELOW = 12
"""mm left below the brain where a neck is cut off."""
LINEAR_MR_AIR = 0.02
"""Mean of noise in air, against the mean of the brain."""


@dataclass(frozen=True, eq=False)
class Hard:
    """A case, and how its head moved (4x4, world to world)."""

    case: Case
    motion: np.ndarray


Hardening = Callable[[Case, np.ndarray], Hard]
"""Of a case whose brain (X, Y, Z) is known."""


# ---- field of view -----------------------------------------------------------------------------------------


def cropped(case: Case, low: np.ndarray, high: np.ndarray) -> Case:
    """Voxels from `low` up to `high`."""
    D = case.D[(slice(None), *(slice(int(a), int(b)) for a, b in zip(low, high)))]
    corner = shifted(case.grid.affine, case.grid.world(low))
    return bare_case(D, corner, tuple(c.name for c in case.contrasts), case.skull_stripped)


def without_neck(case: Case, brain: np.ndarray) -> Hard:
    """The image ends just below the brain."""
    lowest = np.flatnonzero(brain.any((0, 1)))[0]
    low = np.array([0, 0, max(lowest - BELOW, 0)])
    return Hard(cropped(case, low, np.array(case.grid.shape)), np.eye(4))


def with_neck(case: Case, brain: np.ndarray, mm: int = 70) -> Hard:
    """The lowest slices that show flesh, mirrored below them, as far as a case is kept."""
    told = np.isfinite(case.D).any(0)
    crown = np.flatnonzero(told.any((0, 1)))[-1]
    area = told.sum((0, 1))
    first = int(np.flatnonzero(area >= 0.5 * np.median(area[area > 0]))[0])
    body = case.D[..., first:]
    mm = max(min(mm, TALLEST - (crown - first)), 0)
    neck = body[..., 1 : mm + 1][..., ::-1]
    D = np.concatenate([neck, body], -1)
    affine = shifted(case.grid.affine, case.grid.world([0, 0, first - neck.shape[-1]]))
    return Hard(bare_case(D, affine, tuple(c.name for c in case.contrasts), case.skull_stripped), np.eye(4))


def tilted_in_image(case: Case, brain: np.ndarray, degrees: tuple[float, float, float]) -> Hard:
    """The head turned in its field of view, by linear interpolation."""
    center = case.grid.world((np.array(case.grid.shape) - 1) / 2)
    motion = rigid_motion(degrees, (0, 0, 0), center)
    m = case.grid.inverse @ np.linalg.inv(motion) @ case.grid.affine
    D = np.stack([_interpolated(v, m) for v in case.D])
    return Hard(replace(case, D=D), motion)


def _interpolated(values: np.ndarray, m: np.ndarray) -> np.ndarray:
    told = np.isfinite(values)
    sums = [
        ndi.affine_transform(v.astype(np.float32), m[:3, :3], m[:3, 3], order=1, mode="constant")
        for v in (np.where(told, values, 0), told)
    ]
    return np.where(sums[1] > 0.5, sums[0] / np.maximum(sums[1], 1e-6), np.nan).astype(np.float32)


def tilted(case: Case, brain: np.ndarray, degrees: tuple[float, float, float]) -> Hard:
    """The same voxels under a header that is turned, as when the slices are tilted."""
    motion = rigid_motion(degrees, (20.0, -30.0, 10.0), case.grid.world(np.array(case.grid.shape) / 2))
    return Hard(replace(case, grid=Grid(case.grid.shape, motion @ case.grid.affine)), motion)


# ---- intensities -------------------------------------------------------------------------------------------


def bright_fat(case: Case, brain: np.ndarray, factor: float = 4.0) -> Hard:
    """What is as bright as brain but not near it, as fat and mucosa are, made brighter."""
    near = ndi.distance_transform_edt(~brain) < 6
    D = case.D.copy()
    for contrast, v in zip(case.contrasts, D):
        if contrast.is_mr:
            level = np.nanmedian(v[brain])
            outside = ~near & np.isfinite(v)
            v[outside] += np.log(factor) / (1 + np.exp(-(v[outside] - level + 0.3) / 0.1))
    return Hard(replace(case, D=D), np.eye(4))


def faded(case: Case, brain: np.ndarray, way: tuple[float, float, float], range_: float = 2.0) -> Hard:
    """A coil that is `exp(range_)` times as sensitive at one end of the image as at the other."""
    along = np.indices(case.grid.shape, np.float32) / np.array(case.grid.shape).reshape(3, 1, 1, 1) - 0.5
    field = range_ * np.tensordot(np.array(way), along, 1).astype(np.float32)
    return Hard(_brightened(case, field), np.eye(4))


def surface_coil(case: Case, brain: np.ndarray, range_: float = 1.4) -> Hard:
    """Surface coils all around: bright at the skin, dark in the middle of the brain."""
    middle = np.argwhere(brain).mean(0).reshape(3, 1, 1, 1)
    radius = np.sqrt(((np.indices(case.grid.shape, np.float32) - middle) ** 2).sum(0))
    return Hard(_brightened(case, range_ * np.minimum(radius / 90, 1.3).astype(np.float32) ** 2), np.eye(4))


def coil_ends(case: Case, brain: np.ndarray, mm: float = 25.0) -> Hard:
    """A head coil that ends at the base of the brain: the jaw fades within a few cm, down to a tenth."""
    base = np.flatnonzero(brain.any((0, 1)))[0]
    z = np.arange(case.grid.shape[2], dtype=np.float32)
    field = -np.minimum(np.logaddexp(0, (base + 10 - z) / mm), np.log(10.0)).astype(np.float32)
    return Hard(_brightened(case, np.broadcast_to(field, case.grid.shape)), np.eye(4))


def _brightened(case: Case, field: np.ndarray) -> Case:
    is_mr = np.array([c.is_mr for c in case.contrasts], np.float32).reshape(-1, 1, 1, 1)
    return replace(case, D=(case.D + is_mr * field).astype(np.float32))


def noisy_air(case: Case, brain: np.ndarray) -> Hard:
    """Noise where an image was cleared to zero."""
    D = case.D.copy()
    rng = np.random.default_rng(11)
    for contrast, v in zip(case.contrasts, D):
        empty = ~np.isfinite(v)
        noise = rng.rayleigh(LINEAR_MR_AIR, int(empty.sum()))
        level = np.nanmedian(v[brain])
        v[empty] = level + np.log(noise + 1e-4) if contrast.is_mr else -10.0 + 20 * noise
    return Hard(replace(case, D=D), np.eye(4))


def cleared_air(case: Case, brain: np.ndarray) -> Hard:
    """Nothing where the image is dark and connected with its edge, as some scanners deliver it."""
    D = case.D.copy()
    for contrast, v in zip(case.contrasts, D):
        limit = np.nanmedian(v[brain]) - (2.2 if contrast.is_mr else 3.0)
        labels, _ = ndi.label(~(ndi.median_filter(v, 3) > limit))
        edge = np.unique(np.concatenate([labels[0].ravel(), labels[-1].ravel(), labels[:, 0].ravel()]))
        v[np.isin(labels, edge[edge > 0])] = np.nan
    return Hard(replace(case, D=D), np.eye(4))


# ---- tables ------------------------------------------------------------------------------------------------


def chained(*steps: Hardening) -> Hardening:
    """One after the other; the brain is carried along as a channel of its own."""

    def harden(case: Case, brain: np.ndarray) -> Hard:
        motion = np.eye(4)
        for step in steps:
            hard = step(case, brain)
            own = hard.case.grid.inverse @ hard.motion @ case.grid.affine
            back = np.linalg.inv(own)
            brain = ndi.affine_transform(
                brain.astype(np.float32), back[:3, :3], back[:3, 3], hard.case.grid.shape, order=1
            )
            brain, case, motion = brain > 0.5, hard.case, hard.motion @ motion
        return Hard(case, motion)

    return harden


def _tilt(*degrees: float, image: bool = False) -> Hardening:
    x, y, z = degrees
    by = tilted_in_image if image else tilted
    return lambda case, brain: by(case, brain, (x, y, z))


def _fade(*way: float) -> Hardening:
    x, y, z = way
    return lambda case, brain: faded(case, brain, (x, y, z))


def plain(case: Case, brain: np.ndarray) -> Hard:
    """As it is."""
    return Hard(case, np.eye(4))


HARDENINGS: dict[str, Hardening] = {
    "plain": plain,
    "neck added": with_neck,
    "neck cut": without_neck,
    "bright fat": bright_fat,
    "noisy air": noisy_air,
    "cleared air": cleared_air,
    "coil below": _fade(0, 0, -1),
    "coil behind": _fade(0, -1, 0),
    "coil above": _fade(0, 0, 1),
    "coil at the left": _fade(-1, 0, 0),
    "surface coil": surface_coil,
    "coil ends": coil_ends,
    "nod +30": _tilt(30, 0, 0),
    "nod -30": _tilt(-30, 0, 0),
    "lean +30": _tilt(0, 30, 0),
    "turn -30": _tilt(0, 0, -30),
    "nod +20 in image": _tilt(20, 0, 0, image=True),
    "nod -20 in image": _tilt(-20, 0, 0, image=True),
    "neck, fat": chained(with_neck, bright_fat),
    "neck, fat, coil below": chained(with_neck, bright_fat, _fade(0, 0, -1)),
    "neck, fat, coil below, nod +20": chained(with_neck, bright_fat, _fade(0, 0, -1), _tilt(20, 0, 0)),
    "neck, fat, coil below, nod -20": chained(with_neck, bright_fat, _fade(0, 0, -1), _tilt(-20, 0, 0)),
    "neck, fat, noisy air, lean 20": chained(with_neck, bright_fat, noisy_air, _tilt(0, 20, 0)),
    "neck, fat, surface coil, turn 20": chained(with_neck, bright_fat, surface_coil, _tilt(0, 0, 20)),
    "neck, fat, coil ends": chained(with_neck, bright_fat, coil_ends),
    "neck, fat, coil ends, nod +30": chained(with_neck, bright_fat, coil_ends, _tilt(30, 0, 0)),
    "neck, fat, cleared air, nod +10": chained(with_neck, bright_fat, cleared_air, _tilt(10, 0, 0)),
}


def impostors(case: Case, brain: np.ndarray) -> dict[str, Callable[[], Case]]:
    """The head otherwise than its header says, parts of it, and its voxels scrambled: how to make each."""
    names = tuple(c.name for c in case.contrasts)
    out: dict[str, Callable[[], Case]] = {}
    for name, axes in (
        ("upside down, facing back", (2, 3)),
        ("upside down", (1, 3)),
        ("facing back", (1, 2)),
        ("mirrored top to bottom", (3,)),
        ("mirrored front to back", (2,)),
    ):
        out[name] = lambda axes=axes: replace(case, D=np.flip(case.D, axes))
    for name, axes in (("lying on its back", (2, 3)), ("lying on its side", (1, 3))):
        out[name] = lambda axes=axes: bare_case(
            np.rot90(case.D, axes=axes), case.grid.affine, names, case.skull_stripped
        )
    where = np.argwhere(brain)
    first, middle, last = where.min(0), where.mean(0).astype(int), where.max(0)
    shape = np.array(case.grid.shape)
    for axis, halves in enumerate((("right", "left"), ("front", "back"), ("upper", "lower"))):
        for name, keeps_high in zip(halves, (True, False)):
            low, high = np.zeros(3, int), shape.copy()
            (low if keeps_high else high)[axis] = middle[axis]
            out[f"{name} half"] = lambda low=low, high=high: cropped(case, low, high)
    neck = shape.copy()
    neck[2] = first[2] + (last[2] - first[2]) // 10
    if neck[2] > 60:
        out["neck alone"] = lambda: cropped(case, np.zeros(3, int), neck)
    out["scrambled"] = lambda: _scrambled(case)
    return out


def _scrambled(case: Case) -> Case:
    flat = case.D.reshape(len(case.D), -1).copy()
    told = np.flatnonzero(np.isfinite(flat).all(0))
    flat[:, told] = flat[:, np.random.default_rng(3).permutation(told)]
    return replace(case, D=flat.reshape(case.D.shape))


def phantoms() -> Iterator[tuple[str, Case]]:
    """Images that are no head."""
    shape = (180, 220, 200)
    rng = np.random.default_rng(4)
    x, y, z = np.indices(shape, np.float32) - np.array(shape, np.float32).reshape(3, 1, 1, 1) / 2
    noise = rng.normal(0, 1, shape).astype(np.float32)

    def mr(name: str, values: np.ndarray) -> tuple[str, Case]:
        return name, bare_case(
            np.log(np.abs(values) + 0.1).astype(np.float32)[None], np.eye(4), ("T1c",), False
        )

    yield mr("noise", noise)
    yield mr("smooth noise", 20 + 400 * ndi.gaussian_filter(noise, 8))
    ball = np.sqrt(x**2 + y**2 + z**2)
    yield mr("ball", 40 * (ball < 75) + noise)
    yield mr("ball in a shell", 40 * (ball < 65) + 60 * ((ball > 75) & (ball < 85)) + noise)
    yield mr(
        "bottle", 40 * (np.hypot(x, y) < 65) * (np.abs(z) < 70) * (1 + (np.hypot(x - 30, y) < 8)) + noise
    )
    # A chest of blocks, in HU: flesh, two lungs, heart, spine, ribs.
    chest = np.full(shape, -1000.0, np.float32)
    chest[(x / 85) ** 2 + (y / 70) ** 2 < 1] = 40
    for side in (-1, 1):
        chest[((x - side * 38) / 28) ** 2 + (y / 45) ** 2 + (z / 85) ** 2 < 1] = -800
    chest[((x + 12) / 32) ** 2 + ((y - 15) / 30) ** 2 + ((z + 25) / 40) ** 2 < 1] = 50
    chest[np.hypot(x, y + 52) < 14] = 500
    rim = np.abs(np.sqrt((x / 80) ** 2 + (y / 65) ** 2) - 1) < 0.05
    chest[rim & (z % 24 < 10)] = 400
    chest += 15 * noise
    yield "chest of blocks", bare_case((chest / 100)[None].astype(np.float32), np.eye(4), ("CT",), False)
