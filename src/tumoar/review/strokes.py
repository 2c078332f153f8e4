"""Strokes, and what they make of the masks before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.vocabulary.labels import LabelTable, Organ

Mask = npt.NDArray[np.bool_]
Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Stroke:
    """A correction: these voxels are in a structure, or they are not.

    `voxels` (n, 3) are [i, j, k] in the reference image as it is stored; `when` is in UTC. The two parts of a
    contour have the same `id`.
    """

    id: int
    structure: str
    inside: bool
    voxels: npt.NDArray[np.int32]
    who: str
    when: str


def to_runs(voxels: npt.NDArray[np.integer], shape: Shape) -> list[int]:
    """Compress voxels to runs: start, length, start, length, … in the C order of the array."""
    flat = np.unique(np.ravel_multi_index(tuple(np.asarray(voxels, np.int64).T), shape))
    starts = np.flatnonzero(np.diff(flat, prepend=-2) != 1)
    lengths = np.diff(np.append(starts, flat.size))
    return np.column_stack([flat[starts], lengths]).ravel().tolist()


def from_runs(runs: Iterable[int], shape: Shape) -> npt.NDArray[np.int32]:
    """Voxels (n, 3) of the runs of `to_runs`."""
    pairs = np.asarray(list(runs), np.int64).reshape(-1, 2)
    parts = [np.arange(start, start + length) for start, length in pairs]
    flat = np.concatenate([np.empty(0, np.int64), *parts])
    return np.stack(np.unravel_index(flat, shape), 1).astype(np.int32)


def apply_stroke(masks: Mapping[str, Mask], stroke: Stroke, table: LabelTable) -> dict[str, Mask]:
    """Masks after a stroke and nothing else.

    What a structure gains, others that exclude it lose: normal structures each other, and parts of the tumor
    each other. A structure that contains it gains, and one that it contains loses, with it.
    """
    at = tuple(stroke.voxels.T)
    changed = {stroke.structure: stroke.inside}
    own = table.organ(stroke.structure)
    for name in masks:
        other = table.organ(name)
        if name == stroke.structure:
            continue
        if not stroke.inside and parts_of(other) <= parts_of(own):
            changed[name] = False
        elif stroke.inside and parts_of(own) <= parts_of(other):
            changed[name] = True
        elif stroke.inside and exclude_each_other(own, other, table):
            changed[name] = False
    out = dict(masks)
    for name, value in changed.items():
        if name in out:
            out[name] = out[name].copy()
            out[name][at] = value
    return out


def parts_of(organ: Organ) -> set[str]:
    """Normal structures and parts of the tumor that an organ is made of."""
    return {*organ.structures, *organ.tumor}


def exclude_each_other(a: Organ, b: Organ, table: LabelTable) -> bool:
    """Whether no voxel can be in both: they share no part, and tumor does not merely cover anatomy."""
    return not parts_of(a) & parts_of(b) and table.is_anatomy(a) == table.is_anatomy(b)


def to_line(parts: Sequence[Stroke], shape: Shape) -> dict[str, Any]:
    """A stroke as a line of the record; a contour has two parts, what is inside it and what is outside."""
    stroke = parts[0]
    outside = {"outside": to_runs(parts[1].voxels, shape)} if len(parts) > 1 else {}
    return {
        "what": "stroke",
        "id": stroke.id,
        "structure": stroke.structure,
        "inside": stroke.inside,
        "runs": to_runs(stroke.voxels, shape),
        **outside,
        "who": stroke.who,
        "when": stroke.when,
    }


def from_line(line: Mapping[str, Any], shape: Shape) -> tuple[Stroke, ...]:
    """The parts of a stroke of a line of the record: one, or two of a contour, first what is inside."""
    stroke = Stroke(
        int(line["id"]),
        str(line["structure"]),
        bool(line["inside"]),
        from_runs(line["runs"], shape),
        line["who"],
        line["when"],
    )
    if "outside" not in line:
        return (stroke,)
    return stroke, replace(stroke, inside=False, voxels=from_runs(line["outside"], shape))


def group_parts(strokes: Iterable[Stroke]) -> list[tuple[Stroke, ...]]:
    """Strokes with the parts of each contour together."""
    return [tuple(parts) for _, parts in groupby(strokes, key=lambda stroke: stroke.id)]
