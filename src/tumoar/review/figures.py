"""Volumes of the tumor after sampling again, with their intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from tumoar.model.calibration import CORE as CORE_NAME
from tumoar.model.calibration import WHOLE_TUMOR
from tumoar.model.conformal import SHARES
from tumoar.result.folder import interval_columns, volume_columns
from tumoar.result.segmentation import Volume, scale_volume
from tumoar.result.state import State
from tumoar.result.stored import Stored
from tumoar.result.stored_predictions import predict_as
from tumoar.result.tumor import Tumor
from tumoar.review.allowed import CAVITY, CORE, EDEMA, NONE, States, states_of
from tumoar.review.region import Sampled
from tumoar.review.tumor import fractions


def find_volumes(
    result: Stored, names: list[str], states: States, state: State, sampled: Sampled | None
) -> dict[str, dict[str, Any]]:
    """Columns of volumes.tsv for structures of the tumor.

    Means are over the samples; their spread is that of the last sampling, with everything outside its region
    held.
    """
    grid, table = result.grid, result.table
    z, y, cavity = fractions(state, grid)
    labels = np.asarray(result.labels)
    in_brain = [s.index for s in table.structures if s.in_brain] + [part.index for part in table.tumor]
    i, j, k = map(float, grid.spacing)
    core, whole = (states & CORE) > 0, (states & (CORE | EDEMA)) > 0
    brain = np.isin(labels, in_brain) | (states != NONE)
    tumor = Tumor(core, whole, y - cavity, z - cavity, brain, (i, j, k))
    predictions = predict_as(result, tumor)
    cubic = state.grid.voxel_volume / 1000
    out = {}
    for name in names:
        organ = table.organ(name)
        own = states_of(organ, table)
        votes = _votes(state, own)
        mean = float(votes.sum(dtype=np.int64)) / state.samples * cubic
        spread = np.zeros(1)
        if sampled is not None:
            columns = [n for n, bit in enumerate((EDEMA, CORE, CAVITY)) if own & bit]
            inside = sampled.volumes[:, columns].sum(1) * cubic
            spread = inside - inside.mean()
        outlined = float(((states & own) > 0).sum()) * grid.voxel_volume / 1000
        volume = Volume.from_samples(np.maximum(mean + spread, 0), outlined)
        key = {CORE: CORE_NAME, CORE | EDEMA: WHOLE_TUMOR}.get(own)
        if key in predictions:
            found = predictions[key]
            predicted = {share: found.volumes(share) for share in SHARES}
            volume = Volume(
                found.border.volume(0),
                volume.mean,
                volume.sd,
                volume.central,
                None,
                predicted,
                f"uncorrected outlines of {found.calibrated_on}",
            )
            volume = scale_volume(volume, outlined)
        out[name] = {**volume_columns(volume), **interval_columns(volume)}
    return out


def _votes(state: State, own: int) -> np.ndarray:
    z, y, cavity = (v.astype(np.int16) for v in (state.votes_z, state.votes_y, state.votes_cavity))
    parts = ((EDEMA, z - y), (CORE, y - cavity), (CAVITY, cavity))
    return np.sum([votes for bit, votes in parts if own & bit], axis=0)
