"""The head of balls with the structures of the second model: parts by side, and kinds from front to back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import small_head

from tumoar.model.atlas import Atlas
from tumoar.vocabulary.labels import Structure
from tumoar.vocabulary.parts import brain_labels

LABELS = brain_labels()


def split(nodes: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """(V, K) probabilities of the finer table, from those of the default one at these nodes."""
    out = np.zeros((len(nodes), LABELS.K), np.float32)
    along = (nodes[:, 1] - nodes[:, 1].min()) / np.ptp(nodes[:, 1])
    side = np.where(nodes[:, 0] < nodes[:, 0].mean(), "left", "right")
    for whole, name in enumerate(LABELS.wholes):
        parts = {k: LABELS.structures[k] for k in LABELS.parts(name)}
        if len(parts) == 1:
            out[:, next(iter(parts))] = alpha[:, whole]
            continue
        kinds = list(dict.fromkeys(kind(s) for s in parts.values()))
        band = np.minimum((along * len(kinds)).astype(int), len(kinds) - 1)
        for k, s in parts.items():
            here = (band == kinds.index(kind(s))) & ((s.side is None) | (side == s.side))
            out[here, k] = alpha[here, whole]
    return out


def kind(structure: Structure) -> str:
    return structure.name.removeprefix("left ").removeprefix("right ")


def atlas() -> Atlas:
    """The atlas of `small_head` with the finer table."""
    coarse = small_head.atlas()
    return replace(coarse, alpha=split(coarse.nodes, coarse.alpha), labels=LABELS)
