"""What an expert would draw of the structures of a result: intervals, probabilities and samples.

Only where a calibration holds for the structure, the model, the settings and the contrasts. Elsewhere a
result has the spread of its samples, which is not an uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.geometry.border import SOFTNESS, Border, box_around, find_border
from tumoar.model.calibration import CORE, WHOLE_TUMOR, Calibration, Conditions
from tumoar.model.expert import Learned, Part, chance_inside, draw
from tumoar.result.tumor import Tumor

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

BANDS = {0.5: (0.25, 0.75), 0.9: (0.05, 0.95)}
"""Probabilities between which the border of an expert lies, by the share of experts."""
SPREAD = "spread of the samples"


@dataclass(frozen=True, eq=False)
class Prediction:
    """A structure as an expert would draw it; `shape` is that of the grid.

    `calibrated_on` says from what it was learned, such as "18 patients". `parts` numbers voted parts that the
    outline omits; each belongs to the structure with probability `chance`.
    """

    border: Border
    learned: Learned
    calibrated_on: str
    shape: tuple[int, ...]
    parts: npt.NDArray[np.int32] | None = None
    chance: float = 0.0

    def volumes(self, share: float) -> tuple[float, float]:
        """Volumes, cm³, between which that of an expert lies with this probability.

        The volume of the outline is always among them.
        """
        volumes = [self.border.volume(a) for a in (*self.learned.interval(share), 0.0)]
        return min(volumes), max(volumes)

    def probability(self) -> Field:
        """(X, Y, Z) probability that the structure of an expert contains a voxel."""
        out = np.zeros(self.shape, np.float32)
        out[self.border.box] = chance_inside(self.learned, self.border.levels)
        if self.parts is not None:
            out[self.parts > 0] = np.maximum(out[self.parts > 0], np.float32(self.chance))
        return out


def describe_interval(calibrated_on: str, share: float = 0.9) -> str:
    """What an interval is; without a calibration, the spread of the samples."""
    if not calibrated_on:
        return SPREAD
    return f"{100 * share:.0f} % prediction interval (calibrated on {calibrated_on})"


def predict_tumor(tumor: Tumor, calibration: Calibration, conditions: Conditions) -> dict[str, Prediction]:
    """Predict core and whole tumor, as far as they are outlined and calibrated."""
    found = {}
    for name in (CORE, WHOLE_TUMOR):
        entry = calibration.find(name, conditions)
        border = tumor.border(name) if entry is not None else None
        if entry is None or border is None:
            continue
        learned = entry.structures[name]
        parts = tumor.omitted_parts() if name == WHOLE_TUMOR else None
        on = f"{len(learned.displacements)} {entry.cases}"
        found[name] = Prediction(border, learned, on, tumor.whole.shape, parts, entry.chance)
    return found


def organ_border(outline: Mask, votes: Field, spacing: tuple[float, float, float]) -> Border:
    """Border of a non-empty organ, which may lie anywhere and be thin."""
    return find_border(outline, votes, np.ones_like(outline), spacing, SOFTNESS)


def predict_organ(
    name: str,
    outline: Mask,
    votes: Field,
    spacing: tuple[float, float, float],
    calibration: Calibration,
    conditions: Conditions,
) -> Prediction | None:
    """Predict an organ, if it is outlined and calibrated."""
    entry = calibration.find(name, conditions)
    if entry is None or not outline.any():
        return None
    learned = entry.structures[name]
    border = organ_border(outline, votes, spacing)
    return Prediction(border, learned, f"{len(learned.displacements)} {entry.cases}", outline.shape)


def draw_predictions(
    predictions: Mapping[str, Prediction], samples: int, rng: np.random.Generator
) -> Iterator[dict[str, Mask]]:
    """Draw structures that an expert may draw, nested in the order given, on the whole grid."""
    first = next(iter(predictions.values()))
    near = np.zeros(first.shape, bool)
    for p in predictions.values():
        near[p.border.box] = True
        if p.parts is not None:
            near |= p.parts > 0
    box = box_around(near, first.border.spacing, margin=0)
    parts = [
        Part(
            p.border,
            p.border.onto(p.shape, box),
            p.learned,
            None if p.parts is None else p.parts[box],
            p.chance,
        )
        for p in predictions.values()
    ]
    for masks in draw(parts, samples, rng):
        drawn = {}
        for name, mask in zip(predictions, masks):
            drawn[name] = np.zeros(first.shape, bool)
            drawn[name][box] = mask
        yield drawn
