"""Core and whole tumor of a stored result, and what experts may draw of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tumoar.io.calibration import learned_from_row
from tumoar.result.parts import WHOLE, gtv_is_whole
from tumoar.result.prediction import CORE, WHOLE_TUMOR, Prediction, draw_predictions
from tumoar.result.stored import Stored
from tumoar.result.tumor import Tumor


def tumor_of_stored(result: Stored) -> Tumor:
    """Tumor of a stored result, on the voxels of its reference image."""
    table, labels = result.table, np.asarray(result.labels)
    index = {part.name: part.index for part in table.tumor}
    core, edema = (labels == index[name] for name in WHOLE)
    inside = [s.index for s in table.structures if s.in_brain] + list(index.values())
    gtv = next(o.name for o in table.organs if o.kind == "GTV")
    other = next(o.name for o in table.organs if o.tumor == ("edema",))
    first, second = (np.asarray(result.probability(name), np.float32) for name in (gtv, other))
    core_votes, votes = (first - second, first) if gtv_is_whole(table) else (first, first + second)
    i, j, k = map(float, result.grid.spacing)
    return Tumor(core, core | edema, core_votes, votes, np.isin(labels, inside), (i, j, k))


def stored_predictions(result: Stored) -> dict[str, Prediction]:
    """Core and whole tumor as an expert would draw them, with the numbers that the result was made with."""
    return predict_as(result, tumor_of_stored(result)) if result.manifest.get("prediction") else {}


def predict_as(result: Stored, tumor: Tumor) -> dict[str, Prediction]:
    """Predict a tumor with the numbers that a stored result was made with."""
    rows = result.manifest.get("prediction") or {}
    found = {}
    for name in (CORE, WHOLE_TUMOR):
        border = tumor.border(name) if name in rows else None
        if border is not None:
            row = rows[name]
            parts = tumor.omitted_parts() if name == WHOLE_TUMOR else None
            learned = learned_from_row({k: v for k, v in row.items() if k not in ("calibrated_on", "chance")})
            shape = tumor.whole.shape
            found[name] = Prediction(border, learned, row["calibrated_on"], shape, parts, row["chance"])
    return found


def draw_gtv(result: Stored, samples: int) -> tuple[str, Iterator[npt.NDArray[np.bool_]]] | None:
    """Draw the GTV as experts may, and say on what it was calibrated; None if it is not."""
    found = stored_predictions(result)
    name = WHOLE_TUMOR if gtv_is_whole(result.table) else CORE
    if name not in found:
        return None
    rng = np.random.default_rng(int(result.manifest.get("seed", 0)))
    return found[name].calibrated_on, (drawn[name] for drawn in draw_predictions(found, samples, rng))
