"""The head of balls (`tumoar.simulate.ball_head`) with an atlas on a regular mesh."""

from __future__ import annotations

import numpy as np
import reference_tetra

from tumoar.model.atlas import Atlas
from tumoar.simulate.ball_head import (
    LABELS,
    MEANS,
    SD,
    SIZE,
    TUMOR_CENTER,
    TUMOR_MM3,
    case,
    probabilities,
    radius,
    truth,
)

__all__ = [
    "LABELS", "MEANS", "SD", "SIZE", "TUMOR_CENTER", "TUMOR_MM3", "atlas", "case", "dice", "probabilities",
    "radius", "truth",
]  # fmt: skip


def atlas() -> Atlas:
    nodes, tetrahedra = reference_tetra.body_centered((12, 12, 12), 4.0, -0.5)
    return Atlas(nodes, tetrahedra, probabilities(nodes), LABELS)


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))
