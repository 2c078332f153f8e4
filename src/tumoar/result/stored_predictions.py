"""Structures of a stored result, and what experts may draw of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.io.calibration import learned_from_row
from tumoar.model.calibration import CORE, WHOLE_TUMOR
from tumoar.model.expert import Learned
from tumoar.result.parts import WHOLE, gtv_is_whole
from tumoar.result.prediction import Prediction, draw_predictions, organ_border
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
            shape = tumor.whole.shape
            found[name] = Prediction(border, _learned(row), row["calibrated_on"], shape, parts, row["chance"])
    return found


def _learned(row: Mapping[str, Any]) -> Learned:
    return learned_from_row({k: v for k, v in row.items() if k not in ("calibrated_on", "chance")})


def stored_organ(result: Stored, name: str) -> Prediction | None:
    """An organ as an expert would draw it; None if it is empty or not calibrated."""
    row = (result.manifest.get("prediction") or {}).get(name)
    outline = result.mask(name) if row else None
    if row is None or outline is None or not outline.any():
        return None
    votes = np.asarray(result.probability(name), np.float32)
    i, j, k = map(float, result.grid.spacing)
    border = organ_border(outline, votes, (i, j, k))
    return Prediction(border, _learned(row), row["calibrated_on"], outline.shape)


def draw_structure(
    result: Stored, organ: str, samples: int
) -> tuple[str, Iterator[npt.NDArray[np.bool_]]] | None:
    """Draw a structure as experts may, and say on what it was calibrated; None if it is not."""
    row = result.table.organ(organ)
    if not row.tumor:
        alone = stored_organ(result, organ)
        found, name = ({organ: alone} if alone is not None else {}), organ
    else:
        found = stored_predictions(result) if row.kind == "GTV" else {}
        name = WHOLE_TUMOR if gtv_is_whole(result.table) else CORE
    if name not in found:
        return None
    rng = np.random.default_rng(int(result.manifest.get("seed", 0)))
    return found[name].calibrated_on, (drawn[name] for drawn in draw_predictions(found, samples, rng))
