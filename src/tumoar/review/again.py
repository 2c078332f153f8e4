"""Sample again: from the strokes since the last time to new masks and volumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tumoar.result.state import Box, State
from tumoar.result.stored import Stored
from tumoar.review.allowed import CAVITY, CORE, EDEMA, NONE, States, states_of
from tumoar.review.figures import find_volumes
from tumoar.review.organs import follow_stroke
from tumoar.review.strokes import Mask, Stroke, apply_stroke
from tumoar.review.tumor import sample_tumor
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import UsageError

WHOLE_BRAIN = "Brain"
"""It is made of many structures; its corrections take the voxels that are drawn."""


class CancelledError(UsageError):
    """Sampling was cancelled; nothing changed."""


@dataclass(frozen=True, eq=False)
class Before:
    """Where sampling begins: state, tumor and masks of the last sampling, and all strokes in force."""

    result: Stored
    state: State
    states: States
    masks: Mapping[str, Mask]
    automatic: Mapping[str, Mask]
    strokes: tuple[Stroke, ...]


@dataclass(frozen=True, eq=False)
class Made:
    """What sampling made: `masks` are those that differ from the automatic ones, `names` what changed."""

    names: tuple[str, ...]
    state: State
    states: States
    masks: Mapping[str, Mask]
    box: Box | None
    volumes: Mapping[str, Mapping[str, Any]]
    seconds: float


def _changed(masks: Mapping[str, Mask], stroke: Stroke, moved: Mask) -> npt.NDArray[np.int32]:
    """Voxels of a stroke, and those by which its structure followed it."""
    voxels = np.argwhere(moved != masks[stroke.structure])
    return np.unique(np.concatenate([stroke.voxels, voxels]), axis=0).astype(np.int32)


def automatic_states(result: Stored) -> States:
    """Tumor of a result, on the voxels of its reference image."""
    labels, table = np.asarray(result.labels), result.table
    out = np.full(labels.shape, NONE, np.uint8)
    value = {"edema": EDEMA, "core": CORE}
    for part in table.tumor:
        out[labels == part.index] = value[part.name]
    if table.cavity is not None:
        out[labels == table.structures[table.cavity].index] = CAVITY
    return out


def sample_again(
    before: Before,
    new: tuple[Stroke, ...],
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Made:
    """Sample around new strokes."""
    start = time.monotonic()
    result, table = before.result, before.result.table

    def step(done: int, total: int) -> None:
        if cancelled is not None and cancelled():
            raise CancelledError("sample-again", "sampling was cancelled; nothing changed")
        if progress is not None:
            progress(done / total)

    masks = dict(before.masks)
    i, j, k = map(float, result.grid.spacing)
    for stroke in new:
        if not states_of(table.organ(stroke.structure), table) and stroke.structure != WHOLE_BRAIN:
            moved = follow_stroke(masks[stroke.structure], stroke, (i, j, k))
            masks = apply_stroke(masks, replace(stroke, voxels=_changed(masks, stroke, moved)), table)
    for stroke in before.strokes:  # what was drawn stays, whatever follows
        masks = apply_stroke(masks, stroke, table)
    state, states, box, sampled = before.state, before.states, None, None
    of_tumor = tuple(s for s in new if states_of(table.organ(s.structure), table))
    if of_tumor:
        config = Config.model_validate(result.manifest["config"])
        every = tuple(s for s in before.strokes if states_of(table.organ(s.structure), table))
        with threadpool_limits(1, "blas"):
            automatic = automatic_states(result)
            found = sample_tumor(state, every, of_tumor, states, automatic, result.grid, table, config, step)
        changed = found.states != states
        for name in masks:
            own = states_of(table.organ(name), table)
            if own:
                masks[name] = np.where(changed, (found.states & own) > 0, before.masks[name])
        state, states, box, sampled = found.state, found.states, found.box, found.sampled
        for stroke in of_tumor:  # what was drawn stays, whatever the rules of the outline say
            masks = apply_stroke(masks, stroke, table)
    names = tuple(name for name in masks if not np.array_equal(masks[name], before.masks[name]))
    differ = {name: m for name, m in masks.items() if not np.array_equal(m, before.automatic[name])}
    tumor = [name for name in differ if states_of(table.organ(name), table)]
    volumes = find_volumes(result, tumor, states, state, sampled) if tumor else {}
    return Made(names, state, states, differ, box, volumes, time.monotonic() - start)
