"""A resection cavity in the model: a structure that exists only inside core (decision 0041).

Where y = 1 tissue is core or has been removed. The cavity is a column of π, so that the voxel kernels draw it
like any structure, and shares the shape prior of y: it is where core was.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tumoar.model.atlas import Atlas
from tumoar.vocabulary.labels import add_cavity

RARE = 0.05
"""Probability of a cavity at nodes of the brain in Algorithm 2."""
OTHER = 0.1
"""Factor on the probability of untrained structures: unspecified tissue, a single wide Gaussian, otherwise
becomes the fluid of the cavity."""
SHARE = 0.3
"""Prior odds of cavity to core in Algorithm 1, where the atlas expects no fluid."""
FLUID = "CSF"


def open_atlas(atlas: Atlas, *, blood: bool = True) -> Atlas:
    """The atlas with a cavity, in proportion to what is brain but not fluid: ventricles are no cavities."""
    old, labels = atlas.labels, add_cavity(atlas.labels, blood=blood)
    fluid = np.array([s.gmm == FLUID for s in old.structures])
    solid = atlas.alpha[:, old.in_brain & ~fluid].sum(1, keepdims=True, dtype=np.float64)
    factor = np.where(old.trained, 1.0, OTHER)
    alpha = np.hstack([atlas.alpha.astype(np.float64) * factor, RARE * solid])
    return replace(atlas, alpha=alpha / alpha.sum(1, keepdims=True), labels=labels)
