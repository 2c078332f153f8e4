"""What Algorithm 1 leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.inference.fixed import Fixed
from tumoar.model.joint import Labels
from tumoar.model.shape.base import ShapePrior


@dataclass(frozen=True, eq=False)
class Last:
    """What a chain leaves for sampling again: its labels, nodes, shape priors and fixed tumor."""

    labels: Labels
    use: npt.NDArray[np.uint8]
    nodes: npt.NDArray[np.float64]
    shapes: tuple[ShapePrior, ShapePrior]
    fixed_z: Fixed | None = None
    fixed_y: Fixed | None = None
