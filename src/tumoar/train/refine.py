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


def refine_settings(
    settings: AtlasSettings, iterations: int, *, keep_reference: bool = False
) -> AtlasSettings:
    """Settings of a training whose first step is `begin_from`: the same mesh, no edge collapse.

    With `keep_reference`, its nodes do not move either.
    """
    evaluations = 0 if keep_reference else settings.reference_evaluations
    return replace(settings, levels=(Level((), iterations),), collapses=0, reference_evaluations=evaluations)


def adapt_alignment(alignment: Alignment, heads: Sequence[Maps], labels: LabelTable) -> Alignment:
    """The same box with the landmarks that these prepared heads have in it, on average."""
    found = np.mean(
        [apply(np.linalg.inv(alignment.to_head(head, labels)), landmarks(head, labels)) for head in heads], 0
    )
    return Alignment(alignment.shape, dict(zip(landmark_names(labels), found, strict=True)))


def begin_from(
    atlas: Atlas,
    maps: Maps,
    labels: LabelTable,
    settings: AtlasSettings,
    each: Callable[..., list[Any]] = run_serially,
) -> AtlasState:
    """State after the first step: the mesh of an atlas fitted to aligned maps (S, X, Y, Z).

    Maps have values of `labels`, whose structures are those of the atlas, or parts of them.
    """
    trained = [s.trained for s in atlas.labels.structures]
    reference = atlas.nodes + (np.array(maps.shape[1:]) - 1) / 2
    vague = np.ascontiguousarray(smooth(atlas, BLUR).alpha[:, trained])
    vague /= vague.sum(1, keepdims=True)
    whole = to_wholes(atlas.labels, labels)
    K = len(whole)
    positions = np.stack(each(_fit_head, (reference, atlas.tetrahedra, vague, settings), whole[maps]))
    alpha, data = estimate_probabilities(
        positions, atlas.tetrahedra, maps, K, settings, settings.first_em_passes
    )
    return AtlasState(1, reference, atlas.tetrahedra, positions, alpha, data)


def to_wholes(coarse: LabelTable, fine: LabelTable) -> npt.NDArray[np.uint8]:
    """Position among the trained structures of `coarse` of each trained structure of `fine`, or of its whole.

    A KeyError names a structure that `coarse` lacks.
    """
    position = {s.name: k for k, s in enumerate(s for s in coarse.structures if s.trained)}
    rows = [s for s in fine.structures if s.trained]
    return np.array([position[s.name if s.name in position else s.part_of or s.name] for s in rows], np.uint8)


def _fit_head(
    reference: Nodes, tetrahedra: Tetrahedra, alpha: Alpha, settings: AtlasSettings, values: Maps
) -> Nodes:
    return fit(reference, tetrahedra, alpha, values, settings, EVALUATIONS)
