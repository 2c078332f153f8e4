"""A small atlas with random probabilities, and a grid over it."""

import numpy as np
import reference_tetra as ref

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()


def small_atlas(seed=0, cells=(4, 5, 4), spacing=4.0):
    """A box of 16 x 20 x 16 mm centered at x = 0, with soft random probabilities."""
    rng = np.random.default_rng(seed)
    nodes, tetrahedra = ref.jittered(*ref.body_centered(cells, spacing, [-8.0, -9.0, -7.0]), 0.5, rng)
    alpha = rng.dirichlet(np.full(LABELS.K, 0.1), len(nodes)).astype(np.float32)
    return Atlas(nodes, tetrahedra, alpha, LABELS, provenance={"made": "for tests"})


def grid():
    """A 1 mm grid over the small atlas."""
    affine = np.eye(4)
    affine[:3, 3] = [-7.99, -8.99, -6.99]
    return Grid((17, 21, 17), affine)
