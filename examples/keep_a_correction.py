"""Sample again around what a physician has drawn: tumor in a mask, none outside; core stays free."""

import numpy as np

from tumoar import Case, Model, segment
from tumoar.app.pipeline import Given
from tumoar.vocabulary.config import Config


def around(case: Case, tumor: np.ndarray, model: Model, config: Config | None = None):
    """`tumor` (X, Y, Z) bool on the case's grid."""
    z = tumor.astype(np.int8)
    y = np.where(tumor, -1, 0).astype(np.int8)  # -1: free
    return segment(case, model, config, seed=0, given=Given(z, y))
