"""Numbers that turn outlines into prediction intervals, and the conditions under which they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tumoar.model.expert import Learned


@dataclass(frozen=True)
class Entry:
    """Numbers of some structures, learned from one set of references.

    `structures` maps "core", "whole" (the whole tumor) and names of organs to their numbers. `chance` is the
    probability that a part of the voted tumor which the outline omits belongs to it. The numbers hold for
    results with these `conditions` (`digest_conditions`); `contrasts` names their images, `cases` is what
    was compared with references, such as "patients".
    """

    cases: str
    contrasts: tuple[str, ...]
    conditions: str
    structures: Mapping[str, Learned]
    chance: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """A calibration file: its date, and one entry per set of references."""

    date: str
    entries: tuple[Entry, ...]

    def find(self, structure: str, conditions: str) -> Entry | None:
        """The entry that holds for a structure of a result, if any."""
        found = (e for e in self.entries if e.conditions == conditions and structure in e.structures)
        return next(found, None)


NOTHING = Calibration("", ())


def digest_conditions(
    model_sha256: Mapping[str, str], config: Mapping[str, Any], contrasts: Iterable[str]
) -> str:
    """SHA-256 of what a calibration depends on: model, settings, and the set of contrasts.

    `config` are the settings as requested. What the GTV is made of does not matter: core and whole tumor are
    calibrated separately. An estimated exponent of the likelihood counts as such, not by its value.
    """
    settings = {k: v for k, v in config.items() if k != "gtv"}
    about = {
        "model": sorted(model_sha256.values()),
        "settings": settings,
        "contrasts": sorted({name.partition("-")[0] for name in contrasts}),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
