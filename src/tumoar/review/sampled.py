"""What sampling again leaves on disk: the state in its box, and the tumor on the reference image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tumoar.io.store import Section, load_hashed, save_sections
from tumoar.model.joint import Labels
from tumoar.result.state import Box, State
from tumoar.review.allowed import States
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
    arrays: dict[str, Any] = {"states": states}
    for number, mask in enumerate(masks.values()):
        arrays[f"mask_{number}"] = np.packbits(mask)
    card: dict[str, Any] = {"masks": list(masks), "box": None}
    if state is not None and box is not None:
        card["box"] = [[s.start, s.stop] for s in box]
        arrays |= {name: getattr(state, name)[box] for name in VOTES}
        arrays |= {f"labels_{name}": getattr(state.labels, name)[box] for name in "lzy"}
    return save_sections(path, {"sampled": Section(arrays, card)})


def load_sampled(path: Path, sha256: str) -> Saved:
    """Read what a sampling left; refused unless it has the recorded SHA-256."""
    sections, found = load_hashed(path)
    if found != sha256:
        do = "restore it from a copy, or move the folder review away to begin a new one"
        raise IntegrityError("record", "a file of the review was changed", file=path, do=do)
    arrays, card = sections["sampled"].arrays, sections["sampled"].card
    states = arrays["states"]
    masks = {
        name: np.unpackbits(arrays[f"mask_{n}"], count=states.size).reshape(states.shape).astype(bool)
        for n, name in enumerate(card["masks"])
    }
    box = None
    if card["box"] is not None:
        i, j, k = (slice(first, last) for first, last in card["box"])
        box = i, j, k
    return Saved(states, masks, box, arrays)


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
