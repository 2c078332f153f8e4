"""Continue the training of a finished atlas with other label maps, such as other definitions of its organs.

The mesh and its space stay, and with them all that is known in that space. Each head's nodes are fitted to
its label map with the blurred probabilities of the atlas, which are too vague to pull a border to where it
was defined before; probabilities are then estimated from the label maps alone, and the iterations of the
training follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.model.atlas import Atlas, smooth
from tumoar.train.align import Alignment, apply, landmark_names, landmarks
from tumoar.train.atlas import estimate_probabilities, fit, run_serially
from tumoar.train.atlas_state import Alpha, AtlasSettings, AtlasState, Level, Nodes, Tetrahedra
from tumoar.vocabulary.labels import LabelTable

Maps = npt.NDArray[np.uint8]

BLUR = 4.0
"""Standard deviation (mm) of the blur of the probabilities that heads are first fitted with."""
EVALUATIONS = 20
"""Of the cost of each head in that fit."""


def refine_settings(settings: AtlasSettings, iterations: int) -> AtlasSettings:
    """Settings of a training whose first step is `begin_from`: the same mesh, no edge collapse."""
    return replace(settings, levels=(Level((), iterations),), collapses=0)


def adapt_alignment(alignment: Alignment, heads: Sequence[Maps], labels: LabelTable) -> Alignment:
    """The same box with the landmarks that these prepared heads have in it, on average."""
    found = np.mean(
        [apply(np.linalg.inv(alignment.to_head(head, labels)), landmarks(head, labels)) for head in heads], 0
    )
    return Alignment(alignment.shape, dict(zip(landmark_names(labels), found, strict=True)))


def begin_from(
    atlas: Atlas, maps: Maps, settings: AtlasSettings, each: Callable[..., list[Any]] = run_serially
) -> AtlasState:
    """State after the first step: the mesh of an atlas fitted to aligned maps (S, X, Y, Z)."""
    trained = [s.trained for s in atlas.labels.structures]
    reference = atlas.nodes + (np.array(maps.shape[1:]) - 1) / 2
    vague = np.ascontiguousarray(smooth(atlas, BLUR).alpha[:, trained])
    vague /= vague.sum(1, keepdims=True)
    positions = np.stack(each(_fit_head, (reference, atlas.tetrahedra, vague, settings), maps))
    alpha, data = estimate_probabilities(
        positions, atlas.tetrahedra, maps, vague.shape[1], settings, settings.first_em_passes
    )
    return AtlasState(1, reference, atlas.tetrahedra, positions, alpha, data)


def _fit_head(
    reference: Nodes, tetrahedra: Tetrahedra, alpha: Alpha, settings: AtlasSettings, values: Maps
) -> Nodes:
    return fit(reference, tetrahedra, alpha, values, settings, EVALUATIONS)
