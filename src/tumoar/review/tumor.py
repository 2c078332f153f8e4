"""Sample the tumor again around new strokes, and deliver it on the voxels of the reference image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from tumoar.geometry.image import Grid
from tumoar.geometry.resample import cut_grid, resample_mean
from tumoar.model.joint import Labels
from tumoar.result.native import HALF
from tumoar.result.parts import find_islands
from tumoar.result.state import Box, State
from tumoar.review.allowed import (
    ALL,
    CAVITY,
    CORE,
    EDEMA,
    NONE,
    States,
    find_allowed,
    index_into,
    look_up,
    states_of,
)
from tumoar.review.evidence import UNSEEN, Field, Outline, depth_in, weigh
from tumoar.review.region import Sampled, Scene, build_scene, sample_region, weigh_classes
from tumoar.review.strokes import Mask, Stroke, to_runs
from tumoar.review.told import find_told
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.labels import LabelTable

MARGIN = 20
"""Voxels of the box around new strokes."""
AROUND = np.ones((3, 3, 3), bool)

Step = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Outcome:
    """State after sampling, and the tumor on the reference image; `sampled` is None if nothing was drawn."""

    state: State
    states: States
    box: Box | None = None
    sampled: Sampled | None = None


def sample_tumor(
    state: State,
    strokes: Sequence[Stroke],
    new: Sequence[Stroke],
    before: States,
    automatic: States,
    grid: Grid,
    table: LabelTable,
    config: Config,
    step: Step = lambda done, total: None,
) -> Outcome:
    """Sample around `new` strokes, of all `strokes` in force.

    `before` is the tumor on the `grid`, and `automatic` the one that was segmented.
    """
    allowed = find_allowed(strokes, table, grid.shape)
    box = _box_around(new, state, grid)
    if box is None:
        return Outcome(state, before)
    scene = build_scene(state, box)
    index = index_into(grid, state.grid, scene.box)
    here = look_up(allowed, index, ALL)
    i, j, k = map(float, grid.spacing)
    told_z, told_y = (look_up(t, index, UNSEEN) for t in find_told(strokes, before, table, (i, j, k)))
    evidence = _find_evidence(scene, state, (told_z, told_y), look_up(automatic, index, NONE))
    sampled = sample_region(scene, state, here, evidence, _seed(state, strokes, grid), step)
    after = _update(state, scene, sampled)
    states = _deliver(after, scene, before, allowed, new, grid, table, config)
    return Outcome(after, states, scene.box, sampled)


def _seed(state: State, strokes: Sequence[Stroke], grid: Grid) -> int:
    """A seed that depends on what was drawn alone."""
    digest = hashlib.sha256(str(state.seed).encode())
    for stroke in strokes:
        digest.update(f"{stroke.structure} {stroke.inside} {to_runs(stroke.voxels, grid.shape)}".encode())
    return int.from_bytes(digest.digest()[:4], "little")


def _box_around(new: Sequence[Stroke], state: State, grid: Grid) -> Box | None:
    """Box of the state around strokes, with the margin; None if they lie outside of it."""
    corners = np.concatenate([stroke.voxels for stroke in new])
    ends = np.array([corners.min(0) - 0.5, corners.max(0) + 0.5])
    every = np.array([[ends[a, 0], ends[b, 1], ends[c, 2]] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    found = state.grid.index(grid.world(every))
    low = np.maximum(np.floor(found.min(0)).astype(int) - MARGIN, 0)
    high = np.minimum(np.ceil(found.max(0)).astype(int) + MARGIN + 1, state.use.shape)
    if (low >= high).any():
        return None
    i, j, k = (slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    return i, j, k


# ---- evidence ----------------------------------------------------------------------------------------------


def _find_evidence(
    scene: Scene, state: State, told: Sequence[States], automatic: States
) -> tuple[Field, Field]:
    """Log-odds of z and of y that strokes add, all in the box of a scene."""
    normal, edema, core = weigh_classes(scene, state)
    i, j, k = map(float, state.grid.spacing)
    D, region = scene.volume.D, scene.region
    odds_z, odds_y = np.logaddexp(core, edema) - normal, core - np.logaddexp(normal, edema)
    z, y = (
        weigh(some, Outline(D, depth_in(mask, (i, j, k)), mask, odds, (i, j, k)), region)
        for some, mask, odds in (
            (told[0], automatic != NONE, odds_z),
            (told[1], (automatic & (CORE | CAVITY)) > 0, odds_y),
        )
    )
    return z, y


# ---- the state and its delivery ----------------------------------------------------------------------------


def _update(state: State, scene: Scene, sampled: Sampled) -> State:
    """The state with the new labels and votes in a region, scaled to as many samples as before."""
    at = scene.region
    votes = {}
    for name, new in (("votes_z", sampled.z), ("votes_y", sampled.y), ("votes_cavity", sampled.cavity)):
        whole = getattr(state, name).copy()
        scaled = np.rint(new[at] * (state.samples / sampled.samples)).astype(np.uint8)
        part = whole[scene.box]
        part[at] = scaled
        votes[name] = whole
    labels = []
    for name in "lzy":
        whole = getattr(state.labels, name).copy()
        whole[scene.box][at] = getattr(sampled.labels, name)[at]
        labels.append(whole)
    return replace(state, labels=Labels(*labels), **votes)


def fractions(state: State, grid: Grid) -> tuple[Field, Field, Field]:
    """Fractions of the samples with tumor, core with a cavity, and a cavity, on the reference grid."""
    z, y, cavity = (
        resample_mean(votes / np.float32(state.samples), state.grid, grid)
        for votes in (state.votes_z, state.votes_y, state.votes_cavity)
    )
    return z, y, cavity


def _deliver(
    state: State,
    scene: Scene,
    before: States,
    allowed: States,
    new: Sequence[Stroke],
    grid: Grid,
    table: LabelTable,
    config: Config,
) -> States:
    """Tumor on the reference grid: by vote near the strokes where it changed, as before elsewhere."""
    window = _window(state, scene, new, grid)
    part = cut_grid(grid, window)
    z, y, cavity = fractions(state, part)
    voted = np.where(z > HALF, np.where(y > HALF, CORE, EDEMA), NONE).astype(np.uint8)
    voted[cavity > HALF] = CAVITY
    X, Y, Z = part.shape
    index = index_into(state.grid, part, (slice(0, X), slice(0, Y), slice(0, Z)))
    inner = look_up(scene.region.astype(np.uint8), index - [s.start for s in scene.box], 0) > 0
    may = allowed[window]
    after = np.where(inner, voted, before[window])
    after = np.where(may & after > 0, after, _nearest_allowed(may))
    whole = before.copy()
    whole[window] = after
    drawn = np.zeros(before.shape, bool)
    for stroke in new:
        drawn[tuple(stroke.voxels.T)] = True
    fixed = np.ones(before.shape, bool)
    fixed[window] = ~inner | (may != ALL)
    after = _clean(whole, fixed, grid, config)[window]
    contrary = _against(new, before[window], after, table) & (may == ALL)
    after = np.where(contrary, before[window], after)
    parts, _ = ndimage.label((after != before[window]) | drawn[window], AROUND)
    follows = np.zeros(int(parts.max()) + 1, bool)
    follows[parts[drawn[window]]] = True
    out = before.copy()
    out[window] = np.where(follows[parts], after, before[window])
    return out


def _against(new: Sequence[Stroke], before: States, after: States, table: LabelTable) -> Mask:
    """Voxels that left a structure to which strokes only add, or joined one from which they only take."""
    out = np.zeros(before.shape, bool)
    for name in {stroke.structure for stroke in new}:
        own = states_of(table.organ(name), table)
        was, is_now = (before & own) > 0, (after & own) > 0
        says = {stroke.inside for stroke in new if stroke.structure == name}
        if says == {True}:
            out |= was & ~is_now
        elif says == {False}:
            out |= ~was & is_now
    return out


def _window(state: State, scene: Scene, new: Sequence[Stroke], grid: Grid) -> Box:
    """Box of the reference grid around a scene and the strokes."""
    ends = np.array([[s.start - 1, s.stop] for s in scene.box]).T
    every = np.array([[ends[a, 0], ends[b, 1], ends[c, 2]] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    found = grid.index(state.grid.world(every))
    drawn = np.concatenate([stroke.voxels for stroke in new])
    low = np.maximum(np.minimum(np.floor(found.min(0)).astype(int), drawn.min(0)), 0)
    high = np.minimum(np.maximum(np.ceil(found.max(0)).astype(int), drawn.max(0)) + 1, grid.shape)
    i, j, k = (slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    return i, j, k


def _nearest_allowed(allowed: States) -> States:
    """The state that a held voxel gets if the vote is for none of those allowed."""
    out = np.full(allowed.shape, NONE, np.uint8)
    for state in (EDEMA, CAVITY, CORE):
        out[(allowed & NONE == 0) & (allowed & state > 0)] = state
    return out


def _clean(states: States, fixed: Mask, grid: Grid, config: Config) -> States:
    """Remove parts of tumor that a new result omits, unless some of it is `fixed`."""
    found = ndimage.find_objects((states != NONE).view(np.uint8))
    if not found:
        return states
    box = found[0]
    tumor, core = states[box] != NONE, (states[box] & (CORE | CAVITY)) > 0
    islands = find_islands(
        tumor, core, None, grid.voxel_volume / 1000, config.least_tumor, config.least_share
    )
    parts, count = ndimage.label(tumor, AROUND)
    keeps = np.zeros(count + 1, bool)
    keeps[parts[fixed[box]]] = True
    out = states.copy()
    out[box][islands & ~keeps[parts]] = NONE
    return out
