"""A cohort of subjects whose images are words, and orders for it."""

from __future__ import annotations

import sys
from pathlib import Path

from tumoar.cohort.plan import Limits, Order
from tumoar.cohort.subjects import Subject

FAKE = (sys.executable, str(Path(__file__).with_name("fake_segment.py")))


def subjects(folder: Path, kinds: dict[str, str]) -> list[Subject]:
    """One subject for each word."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for label, kind in kinds.items():
        image = folder / f"{label}.nii.gz"
        image.write_text(kind)
        out.append(Subject(label, images={"T1c": str(image)}))
    return out


def order(out: Path, **limits: float) -> Order:
    out.mkdir(parents=True, exist_ok=True)
    given = {"minutes": 1.0, "gb": 2.0, "threads": 1, "retries": 1} | limits
    return Order(str(out), folder=str(out.parent), command=FAKE, limits=Limits(**given))  # type: ignore[arg-type]


def turns(out: Path, name: str) -> int:
    """How often a subject was begun."""
    path = out / "turns" / name
    return len(path.read_text().splitlines()) if path.exists() else 0
