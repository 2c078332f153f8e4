"""Structures in the eye sockets: globes with wall and lens, optic nerves, rectus muscles, fat.

The source labels whole globes, thin muscles, incomplete nerves and soft tissue; the rest is constructed
geometrically. Masks are canonical at 1 mm: i to the right, j to the front, k up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial import ConvexHull

from tumoar.geometry.paths import cheapest_path
from tumoar.train.head_table import EyeSettings, FatSettings, HeadTable, MuscleSettings, NerveSettings
from tumoar.vocabulary.errors import UnreadableFileError

Mask = npt.NDArray[np.bool_]
Point = npt.NDArray[np.float64]

_CORNERS = ndi.generate_binary_structure(3, 3)
_SIDES = ("left", "right")
_MARGIN = 14
"""Margin in voxels around globe and chiasm that contains the whole eye socket."""


def make_eye_sockets(
    tissue: Mapping[str, Mask], chiasm: Mask, brain: Mask, table: HeadTable, name: str | None
) -> dict[str, Mask]:
    """Masks of the structures in both eye sockets; later ones overwrite earlier ones."""
    for needed in ("eye", "muscle", "nerve"):
        if not tissue[needed].any():
            raise UnreadableFileError("structure-missing", f"no voxel of tissue '{needed}'", file=name)
    names = [f"{side} {part}" for side in _SIDES for part in ("optic nerve", "eye tissue", "eye fluid")]
    masks = {key: np.zeros(chiasm.shape, bool) for key in ("eye socket fat", "eye socket muscles", *names)}
    pair = separate_globes(tissue["eye"], name)
    left, right = (np.argwhere(eye).mean(0) for eye in pair)
    sides = split_sides(left, right, chiasm.shape)
    for side, whole_eye, own_side in zip(_SIDES, pair, sides):
        box = box_around(whole_eye | chiasm, _MARGIN)
        local = {key: mask[box] for key, mask in tissue.items()}
        eye = whole_eye[box]
        center = np.argwhere(eye).mean(0)
        nerve = optic_nerve(local, eye, center, chiasm[box], brain[box], table.nerve)
        muscle = rectus_muscles(local, eye | nerve, center, own_side[box], table.muscle)
        wall = eye_wall(eye, center, table.eye)
        found = {
            "eye socket fat": socket_fat(local, eye, nerve, muscle, center, table.fat),
            "eye socket muscles": muscle,
            f"{side} optic nerve": nerve,
            f"{side} eye tissue": wall,
            f"{side} eye fluid": eye & ~wall,
        }
        for key, mask in found.items():
            masks[key][box] |= mask & ~chiasm[box]
    return masks


# ---- globes ------------------------------------------------------------------------------------------------


def separate_globes(marked: Mask, name: str | None = None) -> tuple[Mask, Mask]:
    """Left and right globe: the hulls of the two largest components, without holes and spurs."""
    box = box_around(marked, _MARGIN)
    body = ndi.binary_fill_holes(ndi.binary_closing(marked[box], _CORNERS))
    body = ndi.binary_opening(body, _CORNERS, iterations=2)
    pieces, n = ndi.label(body)
    counts = np.bincount(pieces.ravel(), minlength=n + 2)
    counts[0] = 0
    pair = np.argsort(counts, kind="stable")[::-1][:2]
    if counts[pair].min() < 1000:
        raise UnreadableFileError("structure-missing", "the label map does not show two eyes", file=name)
    masks = np.zeros((2, *marked.shape), bool)
    for mask, piece in zip(masks, sorted(pair, key=lambda p: float(np.argwhere(pieces == p)[:, 0].mean()))):
        mask[box] = convex_hull(pieces == piece)
    return masks[0], masks[1]


def split_sides(left: Point, right: Point, shape: tuple[int, ...]) -> tuple[Mask, Mask]:
    """Split a volume by the perpendicular bisector plane of two points."""
    index = _axes(shape)
    along = sum((axis - m) * d for axis, m, d in zip(index, (left + right) / 2, right - left))
    return np.asarray(along < 0), np.asarray(along >= 0)


def eye_wall(eye: Mask, center: Point, settings: EyeSettings) -> Mask:
    """Shell of the globe, and a lens that faces straight ahead."""
    # The outermost voxels have their centers half a voxel inside the surface. With diagonal neighbors the
    # wall is closed and 1.3 mm thick on average, like sclera, choroid and retina together.
    shell = eye & (ndi.distance_transform_edt(eye) < settings.shell + 0.5)
    radius = (eye.sum() * 3 / (4 * np.pi)) ** (1 / 3)
    i, j, k = _axes(eye.shape)
    x, z = i - center[0], k - center[2]
    y = j - (center[1] + settings.lens_forward * radius)
    across = (x**2 + z**2) / settings.lens_radius**2
    lens = eye & (across + y**2 / settings.lens_half_thickness**2 <= 1)
    return shell | lens


# ---- nerve -------------------------------------------------------------------------------------------------


def optic_nerve(
    tissue: Mapping[str, Mask], eye: Mask, center: Point, chiasm: Mask, brain: Mask, settings: NerveSettings
) -> Mask:
    """Optic nerve from the back of the globe to the chiasm: a path, and labeled voxels near it."""
    line, marked = nerve_line(tissue, eye, center, chiasm, brain, settings)
    distance = ndi.distance_transform_edt(~line)
    nerve = (marked & (distance <= settings.reach)) | (distance <= settings.radius)
    in_front = _axes(eye.shape)[1] > np.argwhere(chiasm).mean(0)[1]
    return nerve & ~eye & ~chiasm & in_front


def nerve_line(
    tissue: Mapping[str, Mask], eye: Mask, center: Point, chiasm: Mask, brain: Mask, settings: NerveSettings
) -> tuple[Mask, Mask]:
    """Path of the nerve from the globe to the chiasm, and the labeled voxels of its side."""
    middle = np.argwhere(chiasm).mean(0)
    sign = np.sign(center[0] - middle[0])
    index = _axes(eye.shape)
    own_side = sign * (index[0] - middle[0]) >= -1
    marked = tissue["nerve"] & own_side & (index[1] > middle[1])

    cost = np.full(eye.shape, settings.unmarked_cost)
    cost[tissue["bone"]] = settings.bone_cost
    cost[brain] = settings.brain_cost
    cost[marked | chiasm] = 1.0
    cost[tissue["eye"] | ~own_side] = np.inf
    near_globe = ndi.binary_dilation(eye, _CORNERS) & ~eye & (index[1] < center[1])
    # The nerve enters at the back, at most 45 degrees off the axis.
    back = [axis - c for axis, c in zip(index, center)]
    near_globe &= -back[1] > np.hypot(back[0], back[2])
    goal = chiasm & own_side & (index[1] >= middle[1])
    line = np.zeros(eye.shape, bool)
    line[tuple(cheapest_path(cost, near_globe, goal).T)] = True
    return line, marked


# ---- muscles and fat ---------------------------------------------------------------------------------------


def rectus_muscles(
    tissue: Mapping[str, Mask], taken: Mask, center: Point, own_side: Mask, settings: MuscleSettings
) -> Mask:
    """Labeled muscles of one side, thickened within soft tissue."""
    index = _axes(taken.shape)
    distance = np.sqrt(sum((axis - c) ** 2 for axis, c in zip(index, center)))
    marked = tissue["muscle"] & own_side & (distance <= settings.reach)
    pieces, n = ndi.label(marked, _CORNERS)
    large = np.bincount(pieces.ravel(), minlength=n + 1) >= settings.smallest
    large[0] = False
    marked = large[pieces]
    return grow(marked, settings.dilation, marked | (tissue["soft"] & ~taken)) & ~taken


def grow(mask: Mask, by: float, within: Mask) -> Mask:
    """Dilate by less than a voxel: adds the voxels covered most until the dilated volume is reached."""
    box = box_around(mask, margin=2)
    fine = mask[box].repeat(2, 0).repeat(2, 1).repeat(2, 2)
    dilated = ndi.distance_transform_edt(~fine, sampling=0.5) <= by
    i, j, k = mask[box].shape
    cover = np.zeros(mask.shape)
    cover[box] = dilated.reshape(i, 2, j, 2, k, 2).mean((1, 3, 5))
    wanted = round(float(cover[within].sum()))
    rank = ndi.gaussian_filter(cover, 0.7) + 10.0 * mask
    rank[~within] = 0
    order = np.argsort(-rank, axis=None, kind="stable")[: max(wanted, int(mask.sum()))]
    out = np.zeros(mask.size, bool)
    out[order] = True
    return out.reshape(mask.shape) & (rank > 0)


def socket_fat(
    tissue: Mapping[str, Mask], eye: Mask, nerve: Mask, muscle: Mask, center: Point, settings: FatSettings
) -> Mask:
    """Soft tissue in the hull of globe, muscles and nerve, grown through soft tissue to the bony wall."""
    j = np.arange(eye.shape[1])[None, :, None]
    rear = np.argwhere(muscle)[:, 1].min() - settings.apex
    region = np.broadcast_to((j >= rear) & (j <= center[1] + settings.front), eye.shape)
    hull = convex_hull((eye | muscle | nerve) & region) & region
    soft = (
        (tissue["soft"] | tissue["vessel"])
        & region
        & (ndi.distance_transform_edt(~hull) <= settings.hull_margin)
    )
    fat = ndi.binary_dilation(hull & soft, iterations=settings.grow, mask=soft)
    return fat & ~eye & ~nerve & ~muscle


def convex_hull(mask: Mask) -> Mask:
    """Voxels whose centers lie in the convex hull of a mask."""
    box = box_around(mask, margin=0)
    planes = np.unique(ConvexHull(np.argwhere(mask[box])).equations.round(9), axis=0)
    i, j, k = _axes(mask[box].shape)
    inside = np.ones(mask[box].shape, bool)
    for a, b, c, d in planes:
        inside &= a * i + b * j + c * k + d <= 1e-6
    out = np.zeros(mask.shape, bool)
    out[box] = inside
    return out


# ---- helpers -----------------------------------------------------------------------------------------------


def _axes(shape: tuple[int, ...]) -> list[npt.NDArray[np.int64]]:
    """Voxel indices along each axis, shaped to broadcast over the volume."""
    return [np.arange(n).reshape([-1 if a == axis else 1 for a in range(3)]) for axis, n in enumerate(shape)]


def box_around(mask: Mask, margin: int) -> tuple[slice, slice, slice]:
    """The box of a mask with a margin, inside the volume."""
    found = ndi.find_objects(mask.astype(np.uint8))[0]
    i, j, k = (slice(max(0, s.start - margin), min(n, s.stop + margin)) for s, n in zip(found, mask.shape))
    return i, j, k
