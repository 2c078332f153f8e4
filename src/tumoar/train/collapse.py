"""Coarsen a training mesh: collapse edges where this reduces the description length of the label maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tumoar.numerics.collapse import collapse_edges, new_mesh
from tumoar.numerics.collapse_trial import Rules
from tumoar.train.atlas_state import AtlasSettings, AtlasState
from tumoar.train.mesh import free_directions

_EDGES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def list_edges(tetrahedra: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """(E, 2) unique edges in lexicographic order."""
    pairs = np.concatenate([tetrahedra[:, list(e)] for e in _EDGES]).astype(np.int64)
    pairs.sort(1)
    keys = np.unique((pairs[:, 0] << 32) | pairs[:, 1])
    return np.stack([keys >> 32, keys & 0xFFFFFFFF], 1)


def collapse(
    state: AtlasState,
    maps: npt.NDArray[np.uint8],
    counts: npt.NDArray[np.float64],
    protected: npt.NDArray[np.bool_],
    settings: AtlasSettings,
    rng: np.random.Generator,
) -> AtlasState:
    """Try edges between unprotected, similar nodes once, in random order; `counts` (V, K) expected voxels."""
    edges = list_edges(state.tetrahedra)
    difference = 0.5 * np.abs(state.alpha[edges[:, 0]] - state.alpha[edges[:, 1]]).sum(1)
    edges = rng.permutation(edges[~protected[edges].any(1) & (difference <= settings.alike)])
    free = free_directions(state.reference, maps.shape[1:])
    mesh = new_mesh(state.tetrahedra, state.reference, state.positions, state.alpha, counts, free, maps)
    rules = Rules(
        settings.floor,
        settings.stiffness,
        settings.kappa,
        settings.collapse_screen,
        settings.collapse_rounds,
        settings.min_volume,
        settings.min_quality,
    )
    alive = collapse_edges(mesh, edges, rules)
    number = np.cumsum(alive) - 1
    tetrahedra = number[mesh.tetrahedra[mesh.tetrahedra[:, 0] >= 0]].astype(np.int32)
    return replace(
        state,
        reference=mesh.reference[alive],
        tetrahedra=np.ascontiguousarray(tetrahedra),
        positions=np.ascontiguousarray(mesh.positions[:, alive]),
        alpha=np.ascontiguousarray(mesh.alpha[alive].astype(np.float32)),
    )
