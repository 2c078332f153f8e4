"""Segment again with a corrected tumor mask; the core inside it stays free."""

import numpy as np

from tumoar import Case, Config, Image, Model, Segmentation, segment


def around(case: Case, tumor: np.ndarray, model: Model, config: Config | None = None) -> Segmentation:
    """`tumor` (X, Y, Z) bool on the case's grid."""
    drawn = Image(tumor.astype(np.uint8), case.grid)
    return segment(case, model, config, fix_tumor=drawn)
