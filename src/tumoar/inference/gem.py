"""Algorithm 2: MAP estimates of θ and the node positions η under the simplified tumor prior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case, Grid
from tumoar.inference.initialise import initialize_prior, initialize_theta, select_voxels, tie_core_components
from tumoar.model import deformation, joint
from tumoar.model.atlas import Atlas, Placed, place, smooth
from tumoar.model.conditionals import mode, update_theta
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import ThetaPrior
from tumoar.numerics.lbfgs import Memory
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import WITH_DATA, Groups, Volume
from tumoar.vocabulary.config import GemConfig
from tumoar.vocabulary.labels import LabelTable

Nodes = npt.NDArray[np.float64]
Pi = npt.NDArray[np.float32]


class Step(NamedTuple):
    """One entry of the convergence trace; the objective is in nats per modeled voxel, higher is better."""

    level: int
    outer: int
    kind: str  # "theta" after an EM iteration, "nodes" after a deformation
    objective: float


@dataclass(frozen=True)
class Fit:
    """Fitted θ of the simplified model on `labels` (core tied), and nodes in voxels of the case's grid."""

    theta: Theta
    nodes: Nodes
    placed: Placed
    labels: LabelTable
    trace: tuple[Step, ...]


class Scene(NamedTuple):
    """Data and priors that stay fixed while θ and η are fitted at one level."""

    volume: Volume
    groups: Groups
    prior: ThetaPrior
    placed: Placed
    alpha: npt.NDArray[np.float32]  # (V, C) node probabilities of classes: structures that share a mixture


def fit(
    case: Case, atlas: Atlas, affine: npt.ArrayLike, tumor_mm3: Mapping[str, float], config: GemConfig
) -> Fit:
    """Run Algorithm 2 from an affine placement of the atlas, coarse to fine.

    `tumor_mm3` holds the expected volumes of core and edema.
    """
    *_, last = iter_fit(case, atlas, affine, tumor_mm3, config)
    return last


def iter_fit(
    case: Case, atlas: Atlas, affine: npt.ArrayLike, tumor_mm3: Mapping[str, float], config: GemConfig
) -> Iterator[Fit]:
    """Run `fit` and yield the state after each outer iteration, for progress bars and checkpoints."""
    fine = place_atlas(case, atlas, affine, config)
    atlas, nodes = fine.atlas, fine.reference
    theta, trace = None, []
    for number, level in enumerate(config.levels):
        factor = max(1, round(level.spacing / float(case.grid.spacing.mean())))
        blurred = smooth(atlas, level.smoothing) if level.smoothing > 0 else atlas
        placed = place(blurred, affine, coarsen_grid(case.grid, factor))
        eta = nodes / factor
        scene, pi = _build_scene(case, factor, placed, eta, tumor_mm3, joint.Flat(config.w, config.u))
        if theta is None:
            theta = initialize_theta(
                tie_core_components(atlas.labels), case.contrasts, scene.volume, pi, scene.groups, scene.prior
            )
        before, memory = -np.inf, Memory()
        for outer in range(config.outer_iterations):
            # The first fit of θ has no bias fields: they would absorb misalignment of the mesh.
            prior = scene.prior if number or outer else clamp_bias(scene.prior)
            elastic = deformation.energy(placed, eta)[0] / count_voxels(scene.volume)
            for step, objective in iter_em(theta, scene.volume, pi, scene.groups, prior, config):
                theta = step
                trace.append(Step(number, outer, "theta", objective - elastic))
            objective, eta, memory = _deform(scene, theta, eta, memory, config)
            trace.append(Step(number, outer, "nodes", objective))
            nodes = eta * factor
            yield Fit(theta, nodes, fine, tie_core_components(atlas.labels), tuple(trace))
            if objective - before < config.tolerance:
                break
            before, pi = objective, rasterize_classes(placed, eta, scene.alpha)


def place_atlas(case: Case, atlas: Atlas, affine: npt.ArrayLike, config: GemConfig) -> Placed:
    """Place the atlas on the grid of a case; without non-brain structures if it is skull-stripped."""
    atlas = merge_nonbrain(atlas) if case.skull_stripped else atlas
    return place(replace(atlas, stiffness=config.stiffness), affine, case.grid)


def iter_em(
    theta: Theta, v: Volume, pi: Pi, groups: Groups, prior: ThetaPrior, config: GemConfig
) -> Iterator[tuple[Theta, float]]:
    """Run EM for given π (Appendix B) until convergence.

    Yields the new θ and the log posterior per voxel of the previous θ.
    """
    before = -np.inf
    for _ in range(config.em_iterations):
        moments, log_likelihood = joint.expect(v, pi, groups, theta)
        objective = (log_likelihood + prior.log_prob(theta)) / count_voxels(v)
        theta = update_theta(theta, moments, prior, mode)
        yield theta, objective
        if objective - before < config.tolerance:
            return
        before = objective


def merge_nonbrain(atlas: Atlas) -> Atlas:
    """Merge structures outside the brain into the background, for skull-stripped images (section 4.2)."""
    structures = atlas.labels.structures
    outside = [s.name for s in structures if not s.in_brain]
    alpha = np.zeros_like(atlas.alpha)
    for k, target in enumerate(atlas.labels.merge_structures(structures[atlas.background].name, outside)):
        alpha[:, target] += atlas.alpha[:, k]
    return replace(atlas, alpha=alpha)


def clamp_bias(prior: ThetaPrior) -> ThetaPrior:
    """Clamp all bias fields to zero."""
    return replace(prior, has_bias=np.zeros_like(prior.has_bias))


def coarsen_grid(grid: Grid, factor: int) -> Grid:
    """Keep every factor-th voxel along each axis, starting with the first."""
    X, Y, Z = (-(-n // factor) for n in grid.shape)
    return Grid((X, Y, Z), grid.affine @ np.diag([factor, factor, factor, 1.0]), grid.frame)


def rasterize_classes(placed: Placed, eta: Nodes, alpha: npt.NDArray[np.float32]) -> Pi:
    """(X, Y, Z, C) prior probabilities of classes; outside the mesh all background."""
    background = int(joint.assign_columns(placed.atlas.labels)[placed.atlas.background])
    return rasterize(eta, placed.tetrahedra, alpha, placed.shape, background)


def count_voxels(v: Volume) -> int:
    """Count voxels with data."""
    return int((v.use == WITH_DATA).sum())


def to_arrays(fit: Fit) -> dict[str, npt.NDArray]:
    """Arrays that, with case, atlas and placement, restore a fit."""
    trace = np.array([(s.level, s.outer, s.kind == "nodes", s.objective) for s in fit.trace])
    return {"nodes": fit.nodes, "trace": trace, **{f"theta_{k}": v for k, v in vars(fit.theta).items()}}


def from_arrays(arrays: Mapping[str, npt.NDArray], placed: Placed) -> Fit:
    """Restore a fit from the arrays of `to_arrays`."""
    theta = Theta(**{k.removeprefix("theta_"): v for k, v in arrays.items() if k.startswith("theta_")})
    trace = tuple(
        Step(int(level), int(outer), "nodes" if moved else "theta", float(objective))
        for level, outer, moved, objective in arrays["trace"]
    )
    return Fit(theta, arrays["nodes"], placed, tie_core_components(placed.atlas.labels), trace)


def _build_scene(
    case: Case, factor: int, placed: Placed, eta: Nodes, tumor_mm3: Mapping[str, float], flat: joint.Flat
) -> tuple[Scene, Pi]:
    """Data and prior of a level, with hyperparameters from its own voxels, and its initial π."""
    labels = tie_core_components(placed.atlas.labels)
    grid = coarsen_grid(case.grid, factor)
    columns = joint.assign_columns(labels)
    alpha = merge_labels(placed.atlas.alpha, columns)
    pi = rasterize_classes(placed, eta, alpha)
    D = np.ascontiguousarray(case.D[:, ::factor, ::factor, ::factor])
    brain = pi[..., np.unique(columns[labels.in_brain])].sum(-1)
    excluded = None if case.excluded is None else case.excluded[::factor, ::factor, ::factor]
    background = pi[..., columns[placed.atlas.background]]
    use = select_voxels(D, background, brain, grid.spacing.tolist(), excluded)
    x_of_column = np.zeros(alpha.shape[1], np.int64)
    x_of_column[columns] = labels.x_of_l
    prior = initialize_prior(labels, case.contrasts, D, use, pi, x_of_column, tumor_mm3, grid.voxel_volume)
    return Scene(
        joint.build_volume(D, use), joint.compile_groups(labels, columns, flat), prior, placed, alpha
    ), pi


def _deform(
    scene: Scene, theta: Theta, eta: Nodes, memory: Memory, config: GemConfig
) -> tuple[float, Nodes, Memory]:
    """Take a few steps toward argmax p(η | D, θ); returns objective, nodes and optimizer memory."""
    L = np.empty((*scene.placed.shape, scene.alpha.shape[1]), np.float32)
    background = int(joint.assign_columns(scene.placed.atlas.labels)[scene.placed.atlas.background])
    offset = joint.class_likelihoods(scene.volume, scene.groups, theta, L, background)
    result = deformation.fit(
        scene.placed,
        eta,
        scene.alpha,
        L,
        background,
        evaluations=max(1, config.deformation_steps),
        tolerance=config.deformation_tolerance,
        memory=memory,
    )
    objective = (offset - result.cost + scene.prior.log_prob(theta)) / count_voxels(scene.volume)
    return objective, result.nodes, result.memory
