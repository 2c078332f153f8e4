"""Organs as a planner draws them, from source label maps of whole heads; rules in `data/clinical.toml`.

The atlas of the package was trained with them, and they are what its organs are judged by on the second
simulator. Arrays are canonical at 1 mm: i to the right, j to the front, k up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.geometry.solids import Globe, Tube
from tumoar.train import eye_sockets
from tumoar.train.head_table import HeadTable
from tumoar.train.prepare import fill_speckle, largest_component, require_source
from tumoar.vocabulary.errors import UnreadableFileError

IntArray = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
Point = npt.NDArray[np.float64]
Rules = Mapping[str, Mapping[str, Any]]

SIDES = ("L", "R")
_MARGIN = 14


@dataclass(frozen=True, eq=False)
class Clinical:
    """Organs by TG-263 name, and what they were made from, per side: globes and courses of the nerves.

    A course runs from the globe to the middle of the chiasm. `landmarks` are the posterior commissure, the
    rear of the mammillary bodies and the tip of the dens, if there is one. `source` are the codes without
    speckle.
    """

    source: IntArray
    organs: Mapping[str, Mask]
    globes: Mapping[str, Globe]
    courses: Mapping[str, Tube]
    landmarks: Mapping[str, Point]


@cache
def clinical_rules() -> Rules:
    """The rules of the package."""
    text = files("tumoar").joinpath("data/clinical.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def define_organs(
    label_map: IntArray, grid: Grid, table: HeadTable, rules: Rules, *, name: str | None = None
) -> Clinical:
    """Organs of a label map with source codes; `name` is for messages."""
    require_source(label_map, grid, table, name)
    source = fill_speckle(label_map.astype(np.int32), table.tissue["air"], table.cleaning["speckle"])
    tissue = {key: np.isin(source, codes) for key, codes in table.tissue.items()}
    single = {key: largest_component(np.isin(source, codes)) for key, codes in _single(rules).items()}
    for organ, mask in single.items():
        if not mask.any():
            raise UnreadableFileError("structure-missing", f"no voxel of {organ}", file=name)
    chiasm = single.pop("OpticChiasm")
    brainstem, landmarks = define_brainstem(source, single.pop("Brainstem"), chiasm, rules["brainstem"])
    brain: Mask = np.isin(source, sorted({c for codes in table.structures.values() for c in codes})) & ~chiasm
    pair = dict(zip(SIDES, eye_sockets.separate_globes(tissue["eye"], name)))
    globes = {side: fit_globe(marked, rules["eye"]) for side, marked in pair.items()}
    eyes = {side: pair[side] | (globe.depth(source.shape) >= 0) for side, globe in globes.items()}
    eyes = {side: eye & ~tissue["bone"] for side, eye in eyes.items()}
    courses = {
        side: trace_nerve(tissue, pair[side], globes[side], chiasm, brain, table, rules["nerve"])
        for side in SIDES
    }
    nerves = {side: courses[side].rasterize(source.shape) & ~eyes["L"] & ~eyes["R"] for side in SIDES}
    chiasm = define_chiasm(chiasm, nerves, tissue["nerve"], rules["chiasm"])
    middle = np.argwhere(chiasm).mean(0)
    ahead = np.arange(source.shape[1])[None, :, None] > middle[1]
    organs = {"Brainstem": brainstem, **single, "OpticChiasm": chiasm}
    organs |= {f"OpticNrv_{side}": largest_component(nerves[side] & ~chiasm & ahead) for side in SIDES}
    organs |= {f"Eye_{side}": eyes[side] for side in SIDES}
    return Clinical(source, organs, globes, courses, landmarks)


def relabel(
    label_map: IntArray, grid: Grid, table: HeadTable, rules: Rules, *, name: str | None = None
) -> IntArray:
    """The label map with the codes of organs where planners draw them, for `prepare_head`.

    Brainstem below the tip of the dens becomes cord, and nerve away from its course soft tissue; voxels
    marked as nerve behind the chiasm, the tracts, stay as they are.
    """
    found = define_organs(label_map, grid, table, rules, name=name)
    organs, out = found.organs, found.source.copy()
    ahead = np.arange(out.shape[1])[None, :, None] > np.argwhere(organs["OpticChiasm"]).mean(0)[1]
    out[np.isin(out, rules["brainstem"]["source"])] = rules["brainstem"]["cord"][0]
    out[np.isin(out, table.tissue["nerve"]) & ahead] = table.tissue["soft"][0]
    for organ, code in (
        ("Brainstem", rules["brainstem"]["source"][0]),
        ("OpticNrv_L", table.tissue["nerve"][0]),
        ("OpticNrv_R", table.tissue["nerve"][0]),
        ("Eye_L", table.tissue["eye"][0]),
        ("Eye_R", table.tissue["eye"][0]),
        ("OpticChiasm", rules["chiasm"]["source"][0]),
    ):
        out[organs[organ]] = code
    return out


def _single(rules: Rules) -> dict[str, Any]:
    return {
        "Brainstem": rules["brainstem"]["source"],
        "OpticChiasm": rules["chiasm"]["source"],
        "Hippocampus_L": rules["hippocampus"]["left"],
        "Hippocampus_R": rules["hippocampus"]["right"],
    }


# ---- brainstem ---------------------------------------------------------------------------------------------


def define_brainstem(
    source: IntArray, labeled: Mask, chiasm: Mask, rules: Mapping[str, Any]
) -> tuple[Mask, dict[str, Point]]:
    """Midbrain with peduncles, pons and medulla, down to the tip of the dens; and the landmarks used."""
    found = np.argwhere(labeled)
    front = np.argwhere(chiasm).mean(0)
    middle = float(found[found[:, 2] > np.median(found[:, 2])][:, 0].mean())
    slab = found[np.abs(found[:, 0] - middle) <= rules["middle"]]
    commissure = slab[slab[:, 2] >= slab[:, 2].max() - 1].mean(0)
    commissure[0] = middle
    along = np.r_[0.0, (commissure - front)[1:]]
    up = np.array([0.0, -along[2], along[1]])
    up *= np.sign(up[2]) or 1.0
    mammillary = front + rules["along"] * along + rules["upward"] * up
    mammillary[0] = middle
    i, j, k = np.ogrid[tuple(slice(0, n) for n in source.shape)]
    plane = mammillary - commissure  # the plane contains this line and the left-right axis
    normal = np.array([0.0, -plane[2], plane[1]])
    normal *= np.sign(normal[2]) or 1.0
    below = normal[1] * (j - commissure[1]) + normal[2] * (k - commissure[2]) < 0
    peduncles = np.isin(source, rules["diencephalon"]) & below & (np.abs(i - middle) <= rules["half_width"])
    landmarks = {"posterior commissure": commissure, "mammillary bodies": mammillary}
    out = labeled | peduncles
    tip = find_dens(source, middle, int(found[:, 2].min()), rules)
    if tip is not None:
        landmarks["dens"] = tip
        out = (out | np.isin(source, rules["cord"])) & (k >= tip[2])
    return largest_component(out), landmarks


def find_dens(source: IntArray, middle: float, bottom: int, rules: Mapping[str, Any]) -> Point | None:
    """Tip of the dens: the lower end of the gap in the bone in front of the cord; None if there is no gap."""
    low, high = max(0, bottom - int(rules["search"][0])), bottom + int(rules["search"][1])
    half = int(rules["middle"])
    slab = source[round(middle) - half : round(middle) + half + 1, :, low:high]
    bone: Mask = np.asarray(np.isin(slab, rules["bone"]).mean(0) > 0.5)
    nervous: Mask = np.asarray(np.isin(slab, [*rules["cord"], *rules["source"]]).any(0))
    first, last = (int(v) for v in rules["canal"])
    count = np.full(bone.shape[1], -1)
    edge = np.zeros(bone.shape[1], int)
    for k in np.flatnonzero(nervous.any(0)):
        edge[k] = int(np.flatnonzero(nervous[:, k]).max())
        count[k] = int(bone[edge[k] + first : edge[k] + last, k].sum())
    pieces, n = ndi.label((count >= 0) & (count <= rules["gap"]))
    for number in range(1, n + 1):
        rows = np.flatnonzero(pieces == number)
        bounded = rows[0] > 0 and rows[-1] + 1 < len(count) and count[rows[0] - 1] > rules["gap"]
        if bounded and rules["least_gap"] <= len(rows) <= rules["most_gap"]:
            return np.array([middle, edge[rows[0]] + (first + last) / 2, low + float(rows[0])])
    return None


# ---- eyes, nerves and chiasm -------------------------------------------------------------------------------


def fit_globe(marked: Mask, rules: Mapping[str, Any]) -> Globe:
    """The ball through the surface of the label behind its front, with a cornea."""
    # Surface voxels have their centers half a voxel inside.
    surface = np.argwhere(marked & ~ndi.binary_erosion(marked)).astype(float)
    center, radius = np.argwhere(marked).mean(0), (3 * marked.sum() / (4 * np.pi)) ** (1 / 3)
    for _ in range(3):
        rear = surface[surface[:, 1] <= center[1] + rules["front"] * radius]
        system = np.c_[2 * rear, np.ones(len(rear))]
        found = np.linalg.lstsq(system, (rear**2).sum(1), rcond=None)[0]
        center, radius = found[:3], float(np.sqrt(found[3] + (found[:3] ** 2).sum())) + 0.5
    apex = rules["apex"] * radius - rules["cornea"]
    return Globe(center, radius, center + np.array([0.0, apex, 0.0]), float(rules["cornea"]))


def trace_nerve(
    tissue: Mapping[str, Mask],
    marked_eye: Mask,
    globe: Globe,
    chiasm: Mask,
    brain: Mask,
    table: HeadTable,
    rules: Mapping[str, Any],
) -> Tube:
    """Smooth course of the nerve from the globe to the middle of the chiasm, and its radius along it."""
    box = eye_sockets.box_around(marked_eye | chiasm, _MARGIN)
    local = {key: mask[box] for key, mask in tissue.items()}
    start = np.array([b.start for b in box], float)
    line, marked = eye_sockets.nerve_line(
        local, marked_eye[box], globe.center - start, chiasm[box], brain[box], table.nerve
    )
    marked &= ndi.distance_transform_edt(~line) <= rules["follow"]
    points = np.argwhere(line | marked)[:, :3] + start
    weight = np.where(line[line | marked], 1.0, 2.0)
    middle = np.argwhere(chiasm).mean(0)
    axis = middle - globe.center
    axis /= np.linalg.norm(axis)
    place = (points - globe.center) @ axis
    steps = np.arange(place.min(), place.max(), 0.5)
    kernel = np.exp(-(((steps[:, None] - place) / rules["smooth"]) ** 2) / 2) * weight
    course = kernel @ points / kernel.sum(1, keepdims=True)
    # Smoothing shortens both ends: the nerve begins in the wall of the globe and ends in the chiasm.
    back = course[0] - globe.center
    begin = globe.center + back / np.linalg.norm(back) * (globe.radius - 0.5)
    end = middle + (course[-1] - middle) * [0.5, 0.0, 0.0]
    course = np.concatenate([_between(begin, course[0]), course, _between(course[-1], end)])
    radius = np.interp(np.linspace(0, 1, len(course)), (0, 1), rules["radius"])
    return Tube(course, radius)


def _between(a: Point, b: Point) -> npt.NDArray[np.float64]:
    """Points from a to b, half a voxel apart."""
    return np.linspace(a, b, max(2, int(np.ceil(2 * np.linalg.norm(b - a)))))


def define_chiasm(labeled: Mask, nerves: Mapping[str, Mask], marked: Mask, rules: Mapping[str, Any]) -> Mask:
    """The chiasm with the ends of nerves and tracts, as far as these are less than `apart` apart."""
    middle = np.argwhere(labeled).mean(0)
    i, j, k = np.ogrid[tuple(slice(0, n) for n in labeled.shape)]
    inside = (np.abs(i - middle[0]) <= rules["apart"] / 2) & (np.abs(j - middle[1]) <= rules["reach"])
    inside = inside & (np.abs(k - middle[2]) <= rules["height"])
    tracts = ndi.binary_dilation(marked & inside & (j < middle[1]), iterations=1) & inside
    out = labeled | ((nerves["L"] | nerves["R"] | tracts) & inside)
    return largest_component(out)
