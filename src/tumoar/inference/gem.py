"""Algorithm 2: MAP estimates of θ and the node positions η under the simplified tumor prior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case, Grid
from tumoar.inference.asymmetry import weigh_asymmetry
from tumoar.inference.initialise import initialize_prior, initialize_theta, select_voxels, tie_core_components
from tumoar.inference.tumor_prior import TumorPrior
from tumoar.model import deformation, joint
from tumoar.model.atlas import Atlas, Placed, place, smooth
from tumoar.model.conditionals import mode, update_theta
from tumoar.model.gmm import Theta
from tumoar.model.location import Location, weigh_location
from tumoar.model.pathway import Course
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
    """Fitted θ of the simplified model on `labels` (core tied), and nodes in voxels of the case's grid.

    `w` (X, Y, Z) is the prior probability of tumor in brain, and `factor` (X, Y, Z) its factor from the
    comparison of sides and from the location. `courses` are those of the optic pathway, once they are found.
    """

    theta: Theta
    nodes: Nodes
    placed: Placed
    labels: LabelTable
    trace: tuple[Step, ...]
    w: npt.NDArray[np.float16]
    factor: npt.NDArray[np.float16]
    courses: tuple[Course, ...] = ()


class Scene(NamedTuple):
    """Data and priors that stay fixed while θ and η are fitted at one level."""

    volume: Volume
    groups: Groups
    prior: ThetaPrior
    placed: Placed
    alpha: npt.NDArray[np.float32]  # (V, C) node probabilities of classes: structures that share a mixture
    sigma: float  # voxels within which the prior of tumor follows the posterior; 0: it does not


def fit(
    case: Case,
    atlas: Atlas,
    affine: npt.ArrayLike,
    tumor_mm3: Mapping[str, float],
    config: GemConfig,
    location: Location | None = None,
) -> Fit:
    """Run Algorithm 2 from an affine placement of the atlas, coarse to fine.

    `tumor_mm3` holds the expected volumes of core and edema.
    """
    *_, last = iter_fit(case, atlas, affine, tumor_mm3, config, location)
    return last


def iter_fit(
    case: Case,
    atlas: Atlas,
    affine: npt.ArrayLike,
    tumor_mm3: Mapping[str, float],
    config: GemConfig,
    location: Location | None = None,
) -> Iterator[Fit]:
    """Run `fit` and yield the state after each outer iteration, for progress bars and checkpoints."""
    fine = place_atlas(case, atlas, affine, config)
    atlas, nodes = fine.atlas, fine.reference
    theta, tumor, trace, coarser = None, None, [], 1
    for number, level in enumerate(config.levels):
        stride = max(1, round(level.spacing / float(case.grid.spacing.mean())))
        blurred = smooth(atlas, level.smoothing) if level.smoothing > 0 else atlas
        placed = place(blurred, affine, coarsen_grid(case.grid, stride))
        eta = nodes / stride
        scene, pi = _build_scene(case, stride, placed, eta, tumor_mm3, config, follows=number == 0)
        if tumor is None or theta is None:
            tumor = _start_tumor(case, placed, affine, pi, stride, config, location)
            theta = initialize_theta(
                tie_core_components(atlas.labels),
                case.contrasts,
                scene.volume,
                tumor.apply(pi),
                scene.groups,
                scene.prior,
                learned=config.start == "learned",
            )
        else:
            tumor = tumor.resample(placed.shape, stride / coarser)
            tumor.apply(pi)
        coarser = stride
        before, memory = -np.inf, Memory()
        for outer in range(config.outer_iterations):
            # By default the first fit of θ has no bias fields: they would absorb misalignment of the mesh.
            has_bias = number > 0 or outer > 0 or config.early_bias
            prior = scene.prior if has_bias else clamp_bias(scene.prior)
            elastic = deformation.energy(placed, eta)[0] / count_voxels(scene.volume)
            for step in iter_em(theta, tumor, scene, pi, prior, config):
                theta, tumor, objective = step
                trace.append(Step(number, outer, "theta", objective - elastic))
            objective, eta, memory = _deform(scene, theta, tumor, eta, memory, config)
            trace.append(Step(number, outer, "nodes", objective))
            nodes = eta * stride
            found = tumor.resample(fine.shape, 1 / stride)
            maps = (found.w.astype(np.float16), found.factor.astype(np.float16))
            yield Fit(theta, nodes, fine, tie_core_components(atlas.labels), tuple(trace), *maps)
            if objective - before < config.tolerance:
                break
            before, pi = objective, tumor.apply(rasterize_classes(placed, eta, scene.alpha))


def _start_tumor(
    case: Case,
    placed: Placed,
    affine: npt.ArrayLike,
    pi: Pi,
    stride: int,
    config: GemConfig,
    location: Location | None,
) -> TumorPrior:
    """The prior of tumor before anything is fitted."""
    columns = _brain_columns(placed.atlas)
    grid = coarsen_grid(case.grid, stride)
    brain = pi[..., columns].sum(-1)
    factor = np.ones(placed.shape, np.float32)
    sides = weigh_asymmetry(case, grid, np.asarray(affine, float), brain, config.symmetry)
    if sides is not None:
        factor *= sides
    if location is not None and config.location < 1:
        factor *= weigh_location(location, grid, affine, config.location)
    return TumorPrior(np.float32(config.w) * factor, config.u, columns, factor)


def place_atlas(case: Case, atlas: Atlas, affine: npt.ArrayLike, config: GemConfig) -> Placed:
    """Place the atlas on the grid of a case; without non-brain structures if it is skull-stripped."""
    atlas = merge_nonbrain(atlas) if case.skull_stripped else atlas
    return place(replace(atlas, stiffness=config.stiffness), affine, case.grid)


def iter_em(
    theta: Theta, tumor: TumorPrior, scene: Scene, pi: Pi, prior: ThetaPrior, config: GemConfig
) -> Iterator[tuple[Theta, TumorPrior, float]]:
    """Run EM for given π with its columns of tumor (Appendix B) until convergence.

    Yields the new θ, the new prior of tumor and the log posterior per voxel of the previous ones. The
    objective never falls while the prior of tumor stays the same. Changes π in place if that prior does not.
    """
    v, before = scene.volume, -np.inf
    for _ in range(config.em_iterations):
        moments, log_likelihood = joint.expect(v, pi, scene.groups, theta)
        objective = (log_likelihood + prior.log_prob(theta)) / count_voxels(v)
        if scene.sigma > 0:
            L, _ = _densities(scene, theta)
            tumor, last = tumor.follow(pi, L, v.use, scene.sigma), tumor
            tumor.apply(pi, last)
        theta = update_theta(theta, moments, prior, mode)
        yield theta, tumor, objective
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
    """(X, Y, Z, C + 2) prior probabilities of classes, outside the mesh all background; none of tumor yet."""
    return rasterize(
        eta, placed.tetrahedra, np.pad(alpha, ((0, 0), (0, 2))), placed.shape, _background(placed)
    )


def _background(placed: Placed) -> int:
    return int(joint.assign_columns(placed.atlas.labels)[placed.atlas.background])


def _brain_columns(atlas: Atlas) -> npt.NDArray[np.int64]:
    return np.unique(joint.assign_columns(atlas.labels)[atlas.labels.in_brain])


def count_voxels(v: Volume) -> int:
    """Count voxels with data."""
    return int((v.use == WITH_DATA).sum())


def to_arrays(fit: Fit) -> dict[str, npt.NDArray]:
    """Arrays that, with case, atlas and placement, restore a fit."""
    trace = np.array([(s.level, s.outer, s.kind == "nodes", s.objective) for s in fit.trace])
    return {
        "nodes": fit.nodes,
        "trace": trace,
        "w": fit.w,
        "factor": fit.factor,
        **{f"theta_{k}": v for k, v in vars(fit.theta).items()},
    }


def from_arrays(arrays: Mapping[str, npt.NDArray], placed: Placed) -> Fit:
    """Restore a fit from the arrays of `to_arrays`."""
    theta = Theta(**{k.removeprefix("theta_"): v for k, v in arrays.items() if k.startswith("theta_")})
    trace = tuple(
        Step(int(level), int(outer), "nodes" if moved else "theta", float(objective))
        for level, outer, moved, objective in arrays["trace"]
    )
    labels = tie_core_components(placed.atlas.labels)
    return Fit(theta, arrays["nodes"], placed, labels, trace, arrays["w"], arrays["factor"])


def _build_scene(
    case: Case,
    factor: int,
    placed: Placed,
    eta: Nodes,
    tumor_mm3: Mapping[str, float],
    config: GemConfig,
    *,
    follows: bool,
) -> tuple[Scene, Pi]:
    """Data and prior of a level, with hyperparameters from its own voxels, and its initial π.

    The prior of tumor `follows` the posterior if the settings have it so.
    """
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
    prior = initialize_prior(
        labels,
        case.contrasts,
        D,
        use,
        pi[..., :-2],
        x_of_column,
        tumor_mm3,
        grid.voxel_volume,
        config,
    )
    groups = joint.compile_groups(labels, columns, tumor_columns=True)
    sigma = config.locality / float(grid.spacing.mean()) if follows else 0.0
    return Scene(joint.build_volume(D, use), groups, prior, placed, alpha, sigma), pi


def _densities(scene: Scene, theta: Theta) -> tuple[Pi, float]:
    """(X, Y, Z, C + 2) densities of classes, edema and core over the background's; its log likelihood."""
    L = np.empty((*scene.placed.shape, scene.alpha.shape[1] + 2), np.float32)
    return L, joint.class_likelihoods(scene.volume, scene.groups, theta, L, _background(scene.placed))


def _deform(
    scene: Scene, theta: Theta, tumor: TumorPrior, eta: Nodes, memory: Memory, config: GemConfig
) -> tuple[float, Nodes, Memory]:
    """Take a few steps toward argmax p(η | D, θ); returns objective, nodes and optimizer memory."""
    L, offset = _densities(scene, theta)
    result = deformation.fit(
        scene.placed,
        eta,
        scene.alpha,
        tumor.marginalize(L),
        _background(scene.placed),
        evaluations=max(1, config.deformation_steps),
        tolerance=config.deformation_tolerance,
        memory=memory,
    )
    objective = (offset - result.cost + scene.prior.log_prob(theta)) / count_voxels(scene.volume)
    return objective, result.nodes, result.memory
