"""Train the mesh atlas from label maps of several heads: group-wise registration (Van Leemput 2009).

Alternates between each head's node positions (guarded L-BFGS), the reference positions (Ashburner's prior is
symmetric: heads serve as its references) and the node probabilities (EM), from coarse to fine meshes; then
edges collapse where this reduces the description length. A step depends only on the state, so that a resumed
run is identical bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial import cKDTree

from tumoar.model.atlas import Atlas
from tumoar.numerics import tetra, tetra_labels
from tumoar.numerics.lbfgs import minimize
from tumoar.numerics.tetra_cost import build_incidence, gather
from tumoar.numerics.tetra_prior import elastic_curvature, elastic_energy
from tumoar.numerics.tetra_raster import rasterize
from tumoar.train import mesh
from tumoar.train.atlas_state import Alpha, AtlasSettings, AtlasState, Level, Nodes, Tetrahedra
from tumoar.train.collapse import collapse
from tumoar.vocabulary.labels import LabelTable

Maps = npt.NDArray[np.uint8]

REACH = 10.0
"""Distance (mm) from the label in any head within which the finished atlas keeps it possible."""


@dataclass(frozen=True)
class Stage:
    """One step: 'mesh' starts a level, 'fit' is an iteration, 'collapse' a pass over all edges."""

    kind: str
    level: int
    weight: int


@dataclass(frozen=True)
class AtlasFigures:
    """Figures of a state: costs in nats per voxel, volume ratios to the reference, minimum shape quality."""

    nodes: int
    tetrahedra: int
    data: float
    prior: float
    smallest: float
    largest: float
    quality: float


@dataclass(frozen=True)
class AtlasInfo:
    """A step, the number of steps done and in total, and figures of the new state."""

    stage: Stage
    done: int
    total: int
    figures: AtlasFigures


def plan(settings: AtlasSettings) -> tuple[Stage, ...]:
    """All steps of a training."""
    stages = []
    for n, level in enumerate(settings.levels):
        weight = 1 + n
        stages += [Stage("mesh", n, weight), *[Stage("fit", n, weight)] * level.iterations]
    last = len(settings.levels) - 1
    for _ in range(settings.collapses):
        stages += [Stage("collapse", last, 60), *[Stage("fit", last, 1 + last)] * settings.polish]
    return tuple(stages)


def initialize(maps: Maps, K: int) -> AtlasState:
    """The state before the first step."""
    empty = np.zeros((0, 3))
    positions = np.zeros((len(maps), 0, 3))
    return AtlasState(0, empty, np.zeros((0, 4), np.int32), positions, np.zeros((0, K), np.float32), np.inf)


def run_serially(function: Callable[..., Any], shared: Sequence[Any], *items: Sequence[Any]) -> list[Any]:
    """Call function(*shared, *one of each of the items) serially."""
    return [function(*shared, *row) for row in zip(*items)]


def train(
    maps: Maps,
    labels: LabelTable,
    settings: AtlasSettings,
    seed: int,
    state: AtlasState | None = None,
    each: Callable[..., list[Any]] = run_serially,
) -> Iterator[tuple[AtlasState, AtlasInfo]]:
    """Run the training on aligned maps (S, X, Y, Z) of positions among the trained labels, step by step.

    Resumes from `state`, if given. `each` fits the heads, like `run_serially` or in parallel; results are
    identical bit for bit.
    """
    names = [s.name for s in labels.structures if s.trained]
    if maps.max() >= len(names):
        raise ValueError(f"maps must have values below {len(names)}, got {maps.max()}")
    stages = plan(settings)
    state = initialize(maps, len(names)) if state is None else state
    while state.done < len(stages):
        stage = stages[state.done]
        rng = np.random.default_rng([seed, state.done])
        if stage.kind == "mesh":
            state = _begin_level(state, maps, names, settings, settings.levels[stage.level], rng)
        elif stage.kind == "fit":
            state = _iterate(state, maps, settings, each)
        else:
            state = _collapse(state, maps, names, settings, rng)
        state = replace(state, done=state.done + 1)
        yield state, AtlasInfo(stage, state.done, len(stages), measure(state, maps, settings))


def measure(state: AtlasState, maps: Maps, settings: AtlasSettings) -> AtlasFigures:
    """Measure how well a state describes the label maps, and how far its meshes are from folding."""
    energies = [
        elastic_energy(x, state.reference, state.tetrahedra, settings.stiffness)[0] for x in state.positions
    ]
    rest = tetra.volumes(state.reference, state.tetrahedra)
    ratios = np.stack([tetra.volumes(x, state.tetrahedra) for x in state.positions]) / rest
    return AtlasFigures(
        len(state.reference),
        len(state.tetrahedra),
        state.data / maps.size,
        sum(energies) / maps.size,
        float(ratios.min()),
        float(ratios.max()),
        float(mesh.quality(state.reference, state.tetrahedra).min()),
    )


def to_atlas(
    state: AtlasState,
    maps: Maps,
    labels: LabelTable,
    settings: AtlasSettings,
    provenance: Mapping[str, Any],
    *,
    everywhere: bool = False,
) -> Atlas:
    """The finished atlas, with its world centered on the box and untrained labels added.

    Untrained labels get `settings.untrained` at every node that can be brain (`everywhere`: at each node, as
    in section 3.1, but then tumor is possible in air); the others are scaled to sum to one. New heads differ
    from those trained, so labels keep their kappa where they were not seen, but only within a short distance.
    """
    trained = np.array([s.trained for s in labels.structures])
    alpha = np.zeros((len(state.reference), labels.K))
    _, seen = tetra_labels.counts(state.positions, state.tetrahedra, state.alpha, maps, settings.floor)
    alpha[:, trained] = np.where(_find_near(state.reference, seen > 0, REACH), state.alpha, 0.0)
    alpha /= alpha.sum(1, keepdims=True)
    support = everywhere | (alpha[:, trained & labels.in_brain].max(1) > settings.support)
    alpha[np.ix_(support, ~trained)] = settings.untrained
    alpha /= alpha.sum(1, keepdims=True)
    center = (np.array(maps.shape[1:]) - 1) / 2
    return Atlas(
        state.reference - center,
        state.tetrahedra,
        alpha.astype(np.float32),
        labels,
        settings.stiffness,
        provenance,
    )


# ---- steps -------------------------------------------------------------------------------------------------


def _begin_level(
    state: AtlasState,
    maps: Maps,
    names: list[str],
    settings: AtlasSettings,
    level: Level,
    rng: np.random.Generator,
) -> AtlasState:
    """New mesh for the same reference space; keeps the deformations of the heads."""
    shape = _shape(maps[0])
    if len(level.sizes) == 1:
        reference, tetrahedra = mesh.build_uniform_mesh(shape, level.sizes[0], rng)
    else:
        fine, border, uncertain = level.sizes
        probability = rasterize(state.reference, state.tetrahedra, state.alpha, shape)
        thin = [names.index(n) for n in settings.thin if n in names]
        organs = [[k] for k, n in enumerate(names) if n not in (*settings.thin, *settings.catch_all)]
        size = mesh.size_map(probability, thin, organs, (fine, border, uncertain), settings.slope)
        reference, tetrahedra = mesh.build_graded_mesh(shape, size, rng)
    positions = np.tile(reference, (len(maps), 1, 1))
    if len(state.reference):
        free = mesh.free_directions(reference, shape)
        for s, old in enumerate(state.positions):
            shift = _displacement_at(reference, state, old, shape) * free
            positions[s] = _unfold(reference, tetrahedra, shift)
    alpha, data = estimate_probabilities(
        positions, tetrahedra, maps, len(names), settings, settings.first_em_passes
    )
    return replace(
        state, reference=reference, tetrahedra=tetrahedra, positions=positions, alpha=alpha, data=data
    )


def _iterate(
    state: AtlasState, maps: Maps, settings: AtlasSettings, each: Callable[..., list[Any]]
) -> AtlasState:
    """Update positions of each head, then of the reference, then probabilities."""
    shared = (state.reference, state.tetrahedra, state.alpha, settings)
    positions = np.stack(each(_fit_head, shared, maps, state.positions))
    reference = _fit_reference(state, positions, _shape(maps[0]), settings)
    alpha, data = _update_probabilities(
        positions, state.tetrahedra, state.alpha, maps, settings, settings.em_passes
    )
    return replace(state, reference=reference, positions=positions, alpha=alpha, data=data)


def _fit_head(
    reference: Nodes, tetrahedra: Tetrahedra, alpha: Alpha, settings: AtlasSettings, values: Maps, x: Nodes
) -> Nodes:
    return fit(reference, tetrahedra, alpha, values, settings, settings.evaluations, x)


def _collapse(
    state: AtlasState, maps: Maps, names: list[str], settings: AtlasSettings, rng: np.random.Generator
) -> AtlasState:
    """One pass over the edges; keeps nodes of thin organs."""
    data, counts = tetra_labels.counts(state.positions, state.tetrahedra, state.alpha, maps, settings.floor)
    thin = state.alpha[:, [names.index(n) for n in settings.thin if n in names]].sum(1) > settings.protect
    return replace(collapse(state, maps, counts, thin, settings, rng), data=data)


def fit(
    reference: Nodes,
    tetrahedra: Tetrahedra,
    alpha: Alpha,
    values: Maps,
    settings: AtlasSettings,
    evaluations: int,
    nodes: Nodes | None = None,
) -> Nodes:
    """Fit node positions to one label map, starting from `nodes` or the reference."""
    free = mesh.free_directions(reference, _shape(values))
    at = build_incidence(tetrahedra, len(reference))

    def cost(x: Nodes) -> tuple[float, Nodes]:
        energy, pull = elastic_energy(x, reference, tetrahedra, settings.stiffness)
        if not np.isfinite(energy):
            return energy, x
        data, slope = tetra_labels.cost_and_gradient(x, tetrahedra, alpha, values, settings.floor)
        return data + energy, gather(slope + pull, at) * free

    x = reference if nodes is None else nodes
    curvature = tetra_labels.curvature(x, tetrahedra, alpha, values, settings.floor)
    curvature += elastic_curvature(reference, tetrahedra, settings.stiffness)
    return minimize(cost, x, gather(curvature, at), tetrahedra, evaluations).nodes


def _fit_reference(state: AtlasState, positions: Nodes, shape: mesh.Shape, settings: AtlasSettings) -> Nodes:
    """Reference positions that minimize the total deformation of all heads."""
    if not settings.reference_evaluations:
        return state.reference
    free = mesh.free_directions(state.reference, shape)
    tetrahedra = state.tetrahedra
    at = build_incidence(tetrahedra, len(state.reference))

    def cost(x: Nodes) -> tuple[float, Nodes]:
        parts = [elastic_energy(x, head, tetrahedra, settings.stiffness) for head in positions]
        pull = np.zeros((len(tetrahedra), 4, 3))
        for _, part in parts:
            pull += part
        return sum(energy for energy, _ in parts), gather(pull, at) * free

    curvature = np.zeros((len(tetrahedra), 4, 3))
    for head in positions:
        curvature += elastic_curvature(head, tetrahedra, settings.stiffness)
    diagonal = gather(curvature, at)
    evaluations = settings.reference_evaluations
    moved = minimize(cost, state.reference, diagonal, tetrahedra, evaluations, radius=0.5).nodes
    return mesh.limit_distortion(state.reference, moved, tetrahedra, settings.min_quality)


def estimate_probabilities(
    positions: Nodes, tetrahedra: Tetrahedra, maps: Maps, K: int, settings: AtlasSettings, passes: int
) -> tuple[Alpha, float]:
    """EM for the node probabilities from equal ones; returns them and the cost before the last step."""
    flat = np.full((positions.shape[1], K), 1 / K, np.float32)
    return _update_probabilities(positions, tetrahedra, flat, maps, settings, passes)


def _update_probabilities(
    positions: Nodes, tetrahedra: Tetrahedra, alpha: Alpha, maps: Maps, settings: AtlasSettings, passes: int
) -> tuple[Alpha, float]:
    """EM for the node probabilities; returns them and the cost before the last step.

    kappa keeps all labels possible.
    """
    data = np.inf
    for _ in range(passes):
        data, counts = tetra_labels.counts(positions, tetrahedra, alpha, maps, settings.floor)
        counts += settings.kappa
        alpha = (counts / counts.sum(1, keepdims=True)).astype(np.float32)
    return alpha, data


def _find_near(nodes: Nodes, seen: npt.NDArray[np.bool_], reach: float) -> npt.NDArray[np.bool_]:
    """(V, K) whether a label was seen at a node within this distance."""
    return np.stack([cKDTree(nodes[at]).query(nodes)[0] <= reach for at in seen.T], 1)


# ---- between meshes ----------------------------------------------------------------------------------------


def _displacement_at(points: Nodes, state: AtlasState, nodes: Nodes, shape: mesh.Shape) -> Nodes:
    """(P, 3) displacement of a head at reference points, through the voxel grid."""
    shift = (nodes - state.reference).astype(np.float32)
    covered = tetra.owners(state.reference, state.tetrahedra, shape) >= 0
    field = np.empty((*shape, 3))
    for d in range(3):
        # A probability-like pair of columns, because the rasterizer clamps negative values.
        low = float(shift[:, d].min())
        value = rasterize(state.reference, state.tetrahedra, shift[:, d : d + 1] - low, shape)[..., 0] + low
        field[..., d] = np.where(covered, value, 0.0)
    sampled = [ndi.map_coordinates(field[..., d], points.T, order=1, mode="nearest") for d in range(3)]
    return np.stack(sampled, 1)


def _unfold(reference: Nodes, tetrahedra: Tetrahedra, shift: Nodes) -> Nodes:
    """Displace nodes; displacements are reduced around tetrahedra that would fold."""
    rest = tetra.volumes(reference, tetrahedra)
    for _ in range(100):
        folded = tetra.volumes(reference + shift, tetrahedra) <= 0.05 * rest
        if not folded.any():
            break
        shift[np.unique(tetrahedra[folded])] *= 0.9
    return reference + shift


def _shape(values: Maps) -> mesh.Shape:
    i, j, k = values.shape
    return i, j, k
