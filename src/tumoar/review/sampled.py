"""What sampling again leaves on disk: the state in its box, and the tumor on the reference image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from tumoar.io.manifest import digest_of_file
from tumoar.io.store import Section, load_sections, save_sections
from tumoar.model.joint import Labels
from tumoar.result.state import Box, State
from tumoar.review.allowed import NONE, States
from tumoar.review.strokes import Mask
from tumoar.vocabulary.errors import IntegrityError

VOTES = ("votes_z", "votes_y", "votes_cavity")


@dataclass(frozen=True, eq=False)
class Saved:
    """What a sampling stored: tumor, masks of structures that changed, and the state in `box`."""

    states: States
    masks: Mapping[str, Mask]
    box: Box | None
    parts: Mapping[str, Any]


def save_sampled(
    path: Path, states: States, masks: Mapping[str, Mask], state: State | None, box: Box | None
) -> str:
    """Write what a sampling left; returns its SHA-256."""
    masks = dict(sorted(masks.items()))  # as the card lists them when it is read
    around = _around(states != NONE)
    arrays: dict[str, Any] = {"states": states[around]}
    boxes = [_around(mask) for mask in masks.values()]
    for number, (mask, part) in enumerate(zip(masks.values(), boxes, strict=True)):
        arrays[f"mask_{number}"] = mask[part]
    card: dict[str, Any] = {
        "shape": list(states.shape),
        "around": _ends(around),
        "masks": {name: _ends(part) for name, part in zip(masks, boxes, strict=True)},
        "box": None,
    }
    if state is not None and box is not None:
        card["box"] = _ends(box)
        arrays |= {name: getattr(state, name)[box] for name in VOTES}
        arrays |= {f"labels_{name}": getattr(state.labels, name)[box] for name in "lzy"}
    return save_sections(path, {"sampled": Section(arrays, card)})


def load_sampled(path: Path, sha256: str) -> Saved:
    """Read what a sampling left; refused unless it has the recorded SHA-256."""
    try:
        is_same = digest_of_file(path) == sha256
    except OSError:
        is_same = False
    if not is_same:
        do = "restore it from a copy, or move the folder review away to begin a new one"
        raise IntegrityError("record", "a file of the review is missing or was changed", file=path, do=do)
    sections = load_sections(path)
    arrays, card = sections["sampled"].arrays, sections["sampled"].card
    states = np.full(card["shape"], NONE, np.uint8)
    states[_slices(card["around"])] = arrays["states"]
    masks = {}
    for number, (name, ends) in enumerate(card["masks"].items()):
        masks[name] = np.zeros(states.shape, bool)
        masks[name][_slices(ends)] = arrays[f"mask_{number}"]
    box = None if card["box"] is None else _slices(card["box"])
    return Saved(states, masks, box, arrays)


def _around(mask: Mask) -> Box:
    """The smallest box that has all of a mask."""
    found = ndimage.find_objects(mask.view(np.uint8))
    if not found:
        return slice(0, 0), slice(0, 0), slice(0, 0)
    i, j, k = found[0]
    return i, j, k


def _ends(box: Box) -> list[list[int]]:
    return [[int(s.start), int(s.stop)] for s in box]


def _slices(ends: list[list[int]]) -> Box:
    i, j, k = (slice(first, last) for first, last in ends)
    return i, j, k


def follow(state: State, saved: Saved) -> State:
    """The state after a sampling that was stored."""
    if saved.box is None:
        return state
    votes, labels = {}, []
    for name in VOTES:
        votes[name] = getattr(state, name).copy()
        votes[name][saved.box] = saved.parts[name]
    for name in "lzy":
        labels.append(getattr(state.labels, name).copy())
        labels[-1][saved.box] = saved.parts[f"labels_{name}"]
    return replace(state, labels=Labels(*labels), **votes)
