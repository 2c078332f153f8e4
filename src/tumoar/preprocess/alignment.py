"""Where an image belongs relative to the reference: by header or by registration, and what to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tumoar.preprocess.register import (
    Matrix,
    Prepared,
    Registration,
    angle,
    distance,
    looks_mirrored,
    refine,
    register,
)
from tumoar.vocabulary.errors import FitError, GeometryError
from tumoar.vocabulary.notes import Note

IDENTITY = np.eye(4)
TOLERANCE = 3.0  # mm, and degrees, by which headers may be off
DOUBTFUL, HOPELESS = 1.0, 3.0  # mm of spread
LEAST_OVERLAP = 0.2  # share of the head that an image must cover


@dataclass(frozen=True, eq=False)
class Placement:
    """`to_moving` takes reference world coordinates to the image's own; figures and notes tell how well."""

    to_moving: Matrix
    figures: Mapping[str, float]
    notes: tuple[Note, ...] = ()


def place_by_header(
    fixed: Prepared, moving: Prepared, name: str, reference: str, *, may_move: bool, slack: float = TOLERANCE
) -> Placement:
    """Believe the headers if registration agrees to `slack` (mm); else move the image, or refuse (B35)."""
    found = refine(fixed, moving, IDENTITY)
    if found.spread > DOUBTFUL or distance(IDENTITY, found.to_moving, fixed.head) > TOLERANCE:
        found = register(fixed, moving)
    if looks_mirrored(fixed, moving, found):
        raise _mirror(name, reference)
    figures = _figures(fixed, found)
    off, turn = figures["offset"], figures["turn"]
    if found.spread > DOUBTFUL:
        return Placement(IDENTITY, figures, (_doubt("B35", name, reference, found),))
    if off <= slack and turn <= TOLERANCE:
        return Placement(IDENTITY, figures)
    is_wrong = off > TOLERANCE or turn > TOLERANCE
    if is_wrong and not may_move:
        raise GeometryError(
            "B35",
            f"{name} is {off:.0f} mm off {reference}",
            found=f"turned by {turn:.1f}°",
            do="let the images be registered",
        )
    text = f"was {off:.0f} mm and {turn:.0f}° off {reference} by its header: registered"
    notes = (Note("B35", text, where=name),) if is_wrong else ()
    return Placement(found.to_moving if may_move else IDENTITY, figures, notes)


def place_by_registration(fixed: Prepared, moving: Prepared, name: str, reference: str) -> Placement:
    """Find where an image belongs whatever its header says (B32); refuse what cannot be aligned."""
    found = register(fixed, moving)
    if found.spread > HOPELESS or found.overlap < LEAST_OVERLAP:
        raise FitError(
            "B32",
            f"{name} cannot be aligned with {reference}",
            found=f"certain to {found.spread:.1f} mm, {found.overlap:.0%} of the head covered",
            do="check that both show the same head",
        )
    if looks_mirrored(fixed, moving, found):
        raise _mirror(name, reference)
    figures = _figures(fixed, found)
    notes = (_doubt("B32", name, reference, found),) if found.spread > DOUBTFUL else ()
    return Placement(found.to_moving, figures, notes)


def _doubt(id: str, name: str, reference: str, found: Registration) -> Note:
    text = f"alignment with {reference} not certain to {found.spread:.1f} mm"
    return Note(id, text, action="check that both show the same head", where=name)


def _figures(fixed: Prepared, found: Registration) -> dict[str, float]:
    """What is recorded of an alignment; `offset` (mm) and `turn` (degrees) are against the headers."""
    return {
        "offset": distance(IDENTITY, found.to_moving, fixed.head),
        "turn": angle(found.to_moving),
        "spread": found.spread,
        "information": found.information,
        "overlap": found.overlap,
    }


def _mirror(name: str, reference: str) -> GeometryError:
    return GeometryError(
        "B36",
        f"{name} looks left-right mirrored against {reference}",
        do="check how both images were converted",
    )
