"""Alignment of an image with the reference, by header or by registration, with notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tumoar.preprocess.register import (
    Matrix,
    Prepared,
    Registration,
    looks_mirrored,
    mean_distance,
    refine,
    register,
    rotation_angle,
)
from tumoar.vocabulary.errors import FitError, GeometryError
from tumoar.vocabulary.notes import Note

IDENTITY = np.eye(4)
TOLERANCE = 3.0  # mm and degrees; accepted error of headers
DOUBTFUL, HOPELESS = 1.0, 3.0  # mm of spread
LEAST_OVERLAP = 0.2  # fraction of the head that an image must cover


@dataclass(frozen=True, eq=False)
class Placement:
    """`to_moving` maps reference world coordinates to those of the image; figures and notes on quality."""

    to_moving: Matrix
    figures: Mapping[str, float]
    notes: tuple[Note, ...] = ()


def place_by_header(
    fixed: Prepared, moving: Prepared, name: str, reference: str, *, may_move: bool, slack: float = TOLERANCE
) -> Placement:
    """Use the header if registration agrees within `slack` (mm); else move the image, or raise B35."""
    found = refine(fixed, moving, IDENTITY)
    if found.spread > DOUBTFUL or mean_distance(IDENTITY, found.to_moving, fixed.head) > TOLERANCE:
        found = register(fixed, moving)
    if looks_mirrored(fixed, moving, found):
        raise _mirror_error(name, reference)
    figures = _measure(fixed, found)
    off, turn = figures["offset"], figures["turn"]
    if found.spread > DOUBTFUL:
        return Placement(IDENTITY, figures, (_doubt("B35", name, reference, found),))
    if off <= slack and turn <= TOLERANCE:
        return Placement(IDENTITY, figures)
    is_wrong = off > TOLERANCE or turn > TOLERANCE
    if is_wrong and not may_move:
        raise GeometryError(
            "B35",
            f"{name} is misaligned with {reference} by {off:.0f} mm",
            found=f"rotated by {turn:.1f}°",
            do="allow registration: omit --no-register",
        )
    text = f"header was off {reference} by {off:.0f} mm and {turn:.0f}°: registered"
    notes = (Note("B35", text, where=name),) if is_wrong else ()
    return Placement(found.to_moving if may_move else IDENTITY, figures, notes)


def place_by_registration(fixed: Prepared, moving: Prepared, name: str, reference: str) -> Placement:
    """Register an image regardless of its header; raises B32 if it cannot be aligned."""
    found = register(fixed, moving)
    if found.spread > HOPELESS or found.overlap < LEAST_OVERLAP:
        raise FitError(
            "B32",
            f"{name} cannot be aligned with {reference}",
            found=f"uncertain by {found.spread:.1f} mm, {found.overlap:.0%} of the head covered",
            do="check that both show the same head",
        )
    if looks_mirrored(fixed, moving, found):
        raise _mirror_error(name, reference)
    figures = _measure(fixed, found)
    notes = (_doubt("B32", name, reference, found),) if found.spread > DOUBTFUL else ()
    return Placement(found.to_moving, figures, notes)


def _doubt(id: str, name: str, reference: str, found: Registration) -> Note:
    text = f"alignment with {reference} is uncertain by {found.spread:.1f} mm"
    return Note(id, text, action="check that both show the same head", where=name)


def _measure(fixed: Prepared, found: Registration) -> dict[str, float]:
    """Quality measures of an alignment; `offset` (mm) and `turn` (degrees) are relative to the headers."""
    return {
        "offset": mean_distance(IDENTITY, found.to_moving, fixed.head),
        "turn": rotation_angle(found.to_moving),
        "spread": found.spread,
        "information": found.information,
        "overlap": found.overlap,
    }


def _mirror_error(name: str, reference: str) -> GeometryError:
    return GeometryError(
        "B36",
        f"{name} looks left-right mirrored relative to {reference}",
        do="check how both images were converted",
    )
