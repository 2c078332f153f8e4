"""Numbers that turn outlines into prediction intervals, and the conditions under which they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tumoar.model.expert import Learned

CORE, WHOLE_TUMOR = "core", "whole"
"""Names of the parts of tumor in a calibration."""
SWEEPS = ("burn_in", "samples")
"""Settings of Algorithm 1 that do not count for organs (decision 0038)."""


@dataclass(frozen=True)
class Conditions:
    """What the numbers of a result depend on, as digests: for parts of tumor, and for organs.

    Numbers hold for results with the same digest; none hold where it is empty.
    """

    tumor: str = ""
    organs: str = ""

    def of(self, structure: str) -> str:
        """The digest that counts for a structure."""
        return self.tumor if structure in (CORE, WHOLE_TUMOR) else self.organs


NOWHERE = Conditions()
"""Conditions of a result for which no numbers hold."""


@dataclass(frozen=True)
class Entry:
    """Numbers of some structures, learned from one set of references.

    `structures` maps "core" and "whole" (the whole tumor), or names of organs, to their numbers. `chance` is
    the probability that a part of the voted tumor which the outline omits belongs to it. The numbers hold for
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

    def find(self, structure: str, conditions: Conditions) -> Entry | None:
        """The entry that holds for a structure of a result, if any."""
        digest = conditions.of(structure)
        found = (e for e in self.entries if e.conditions == digest and structure in e.structures)
        return next(found, None)


NOTHING = Calibration("", ())


def digest_conditions(
    model_sha256: Mapping[str, str],
    config: Mapping[str, Any],
    contrasts: Iterable[str],
    own: Sequence[str] = (),
) -> Conditions:
    """SHA-256 of what a calibration depends on: model, settings, and the set of contrasts.

    `config` are the settings as requested. What the GTV is made of does not matter: core and whole tumor are
    calibrated separately. An estimated exponent of the likelihood counts as such, not by its value. For
    organs, the numbers of sweeps do not matter; for tumor, the course of optic nerves does not. `own` are
    contrasts that a user's table defines otherwise than the package.
    """
    settings = {k: v for k, v in config.items() if k != "gtv"}
    tumor = {k: v for k, v in settings.items() if k != "pathway"}
    gibbs = {k: v for k, v in settings.get("gibbs", {}).items() if k not in SWEEPS}
    about = {
        "model": sorted(model_sha256.values()),
        "contrasts": sorted({name.partition("-")[0] for name in contrasts}),
        **({"own": sorted(own)} if own else {}),
    }
    return Conditions(
        _digest({**about, "settings": tumor}),
        _digest({**about, "settings": {**settings, "gibbs": gibbs}, "of": "organs"}),
    )


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
