"""Algorithm 1: a blocked Gibbs sampler of labels, hidden units and θ; node positions are fixed or drawn too.

A sweep is a pure function of the chain and its state. Its random numbers depend only on the seed and the
number of the sweep, so a restored state continues bit for bit as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case
from tumoar.inference import nodes
from tumoar.inference.fixed import Fixed, apply_fixed, extend_to_core, fix_field
from tumoar.inference.gem import Fit
from tumoar.inference.initialise import (
    find_enhancing,
    find_solid,
    initialize_labels,
    initialize_prior,
    open_cavity,
    release_core_components,
    select_voxels,
    turn_to_core,
)
from tumoar.inference.noise_correlation import estimate_likelihood_exponent
from tumoar.inference.schedule import Schedule, find_active_region
from tumoar.inference.tumor_prior import TumorPrior
from tumoar.model import joint
from tumoar.model.cavity import Fillings, find_fillings, find_kinds, find_odds
from tumoar.model.conditionals import make_sampler, update_theta
from tumoar.model.generative import temper_priors
from tumoar.model.gmm import Moments, Theta
from tumoar.model.joint import Labels
from tumoar.model.pathway import constrain, default_pathway
from tumoar.model.shape.base import ShapePrior, select_color
from tumoar.model.theta_prior import ThetaPrior
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import UNUSED, Groups, Prior, Volume
from tumoar.vocabulary.config import Config, GibbsConfig
from tumoar.vocabulary.labels import LabelTable

Field = npt.NDArray[np.float32]

TUMOR = 0.5
"""Prior probability of tumor, after Algorithm 2, above which a course has no say."""


@dataclass(frozen=True)
class Chain:
    """The constants of a chain: data, prior, shape priors, seed.

    `pi` holds the label probabilities at the fitted nodes. Tumor is possible in `region`. Where `fixed_z`
    (X, Y, Z) is 0 or 1, z is fixed at that value; where it is -1, z is sampled; y likewise. `schedule`
    determines the voxels that a sweep draws. `tau` is the likelihood exponent. `location` and
    `location_y` (X, Y, Z), if given, are added to the log-odds of z and of y. With a `mesh`, the schedule
    also moves the nodes.
    """

    labels: LabelTable
    volume: Volume
    pi: Prior
    prior: ThetaPrior
    shape_z: ShapePrior
    shape_y: ShapePrior
    region: npt.NDArray[np.bool_]
    seed: int
    fixed_z: Fixed | None = None
    fixed_y: Fixed | None = None
    schedule: Schedule = field(default_factory=Schedule)
    tau: float = 1.0
    location: Field | None = None
    location_y: Field | None = None
    mesh: nodes.Mesh | None = None

    @cached_property
    def groups(self) -> Groups:
        """Labels of each mixture."""
        return joint.compile_groups(self.labels)

    @cached_property
    def everywhere(self) -> npt.NDArray[np.uint8]:
        """(X, Y, Z) `ChainState.active` of a full sweep."""
        return np.where(self.region, np.uint8(2), np.uint8(0))

    @property
    def colors(self) -> int:
        """Number of voxel sets that are drawn sequentially."""
        return max(self.shape_z.colors, self.shape_y.colors)


@dataclass(frozen=True)
class ChainState:
    """The state of a chain after `sweep` sweeps.

    θ, labels, and the moments of the t drawn with them. `active` (X, Y, Z) says where partial sweeps draw
    tumor: 0 nowhere, 1 tumor, 2 tumor and core. `rest` holds the moments of rows outside the active region.
    `mesh` holds the nodes, if they are drawn.
    """

    sweep: int
    theta: Theta
    labels: Labels
    moments: Moments
    active: npt.NDArray[np.uint8]
    rest: Moments | None = None
    mesh: nodes.MeshState | None = None


class SweepInfo(NamedTuple):
    """Diagnostics of a sweep: number, voxels of tumor, of core, changed; percentage of nodes moved."""

    sweep: int
    tumor: int
    core: int
    changed: int
    moved: int = 0


def initialize_chain(
    case: Case,
    fit: Fit,
    shapes: tuple[ShapePrior, ShapePrior],
    tumor_mm3: Mapping[str, float],
    config: Config,
    seed: int,
    *,
    fixed_z: Fixed | None = None,
    fixed_y: Fixed | None = None,
) -> tuple[Chain, ChainState]:
    """Initialize Algorithm 1 from the result of Algorithm 2, with `shapes` as priors of z and y.

    Starts from the most probable labels of the simplified model with an initial core (`initialize_labels`),
    and from θ with its core components released.
    """
    atlas = fit.placed.atlas
    labels = atlas.labels
    alpha = np.pad(atlas.alpha, ((0, 0), (0, 2)))
    with_tumor = rasterize(fit.nodes, fit.placed.tetrahedra, alpha, fit.placed.shape, atlas.background)
    pi = with_tumor[..., :-2]
    if fit.courses:
        keeps = fit.w > TUMOR
        constrain(pi, fit.courses, case.grid, atlas.background, default_pathway(), keeps)
    brain = pi[..., labels.in_brain].sum(-1)
    spacing = case.grid.spacing.tolist()
    use = select_voxels(case.D, pi[..., atlas.background], brain, spacing, case.excluded)
    volume = joint.build_volume(case.D, use)
    mm3 = case.grid.voxel_volume
    prior = initialize_prior(
        labels, case.contrasts, case.D, use, pi, labels.x_of_l, tumor_mm3, mm3, config.gem
    )
    given = (fit.labels, case.contrasts, case.D, fit.theta)
    fillings = None if labels.cavity is None else find_fillings(*given)
    own = _pack_prior(volume, pi, fit, fillings)
    fixed_z = extend_to_core(fixed_z, fixed_y)
    first = find_most_probable(fit, volume, with_tumor, config.gem.u)
    rng = np.random.default_rng([seed, 0])
    if config.gibbs.start == "paper":
        first = turn_to_core(first, rng)
    else:
        bright, solid = find_enhancing(*given), find_solid(labels, pi)
        if fillings is not None:
            solid |= ~fillings.any  # whatever the atlas expects
        solid &= labels.in_brain[first.l]
        first = initialize_labels(first, bright, solid, spacing, rng, opened=fillings is not None)
    if fillings is not None:
        first = open_cavity(first, labels, fillings.clear, fillings.blood)
    first = apply_fixed(first, fixed_z, fixed_y, labels)
    region = (use != UNUSED) & (brain > 0)
    schedule = Schedule.from_settings(config.gibbs)
    estimated = estimate_likelihood_exponent(volume, fit.labels, first, fit.theta)
    tau = estimated if config.gibbs.tau == "images" else config.gibbs.tau
    shapes = temper_priors(shapes, config, estimated)
    location = np.log(fit.factor.astype(np.float32)) if (fit.factor < 1).any() else None
    chain = Chain(
        labels, volume, own, prior, *shapes, region, seed, fixed_z, fixed_y, schedule, tau, location
    )
    theta = release_core_components(fit.theta, fit.labels, labels)
    del pi, with_tumor  # as large as all else
    if not schedule.nodes_every:
        return chain, initialize_state(chain, theta, first)
    L = nodes.find_likelihoods(fit.placed, volume, theta, first.z, tau)
    chain = replace(chain, mesh=nodes.build_mesh(fit.placed, fit.nodes, L))
    return chain, initialize_state(chain, theta, first, fit.nodes)


def _pack_prior(volume: Volume, pi: npt.NDArray[np.float32], fit: Fit, fillings: Fillings | None) -> Prior:
    """Pack π for the sampler, where the shape priors make a cavity rare; sides and location do not matter."""
    cavity = fit.labels.cavity
    if cavity is None or fillings is None:
        return joint.pack_prior(volume, pi)
    rare = pi[..., cavity].copy()
    pi[..., cavity] *= find_odds(find_kinds(fillings), fit.factor)
    packed = joint.pack_prior(volume, pi)
    pi[..., cavity] = rare
    return packed


def find_most_probable(fit: Fit, volume: Volume, pi: npt.NDArray[np.float32], u: float) -> Labels:
    """Most probable labels of the simplified model; π (X, Y, Z, K + 2) gets its columns of tumor."""
    table = fit.labels
    brain = np.flatnonzero(table.in_brain)
    tumor = TumorPrior(fit.w.astype(np.float32), u, brain, fit.factor.astype(np.float32))
    groups = joint.compile_groups(table, tumor_columns=True)
    found = joint.find_most_probable(volume, tumor.apply(pi), groups, fit.theta)
    l = found.l.copy()
    at = l >= table.K  # tumor: the structure below it is the most probable of the brain
    l[at] = brain[pi[at][:, brain].argmax(1)]
    return Labels(l, found.z, found.y)


def initialize_state(
    chain: Chain, theta: Theta, labels: Labels, eta: npt.NDArray[np.float64] | None = None
) -> ChainState:
    """State before the first sweep: t drawn given θ and the initial labels; `eta` are the nodes of π."""
    columns = joint.assign_columns(chain.labels)
    onehot = columns.astype(np.uint8)[labels.l][..., None] == np.arange(columns.max() + 1, dtype=np.uint8)
    given = tuple(np.where(v == 1, np.float32(np.inf), np.float32(-np.inf)) for v in (labels.z, labels.y))
    groups = joint.compile_groups(chain.labels, columns)
    # `onehot` determines the columns, so only the moments are drawn.
    pi = joint.pack_prior(chain.volume, onehot)
    fields, key = (given[0], given[1]), (chain.seed, 0)
    _, moments = joint.draw(chain.volume, pi, groups, theta, fields, labels, key, tau=chain.tau)
    mesh = None if chain.mesh is None or eta is None else nodes.start(chain.mesh, eta, chain.pi)
    return ChainState(0, theta, labels, moments, chain.everywhere, mesh=mesh)


def sweep(chain: Chain, state: ChainState) -> tuple[ChainState, SweepInfo]:
    """One iteration of Algorithm 1: θ given D, l, z, y; H^z and H^y given z and y; l, z, y given all these.

    As θ is drawn given t as well, t is drawn with the labels (Appendix A). Nodes, if they are drawn, are
    moved between θ and the labels, with l and t summed out: every voxel draws both afterwards.
    """
    number = state.sweep + 1
    rng = np.random.default_rng([chain.seed, number])
    theta = update_theta(state.theta, state.moments, chain.prior, make_sampler(rng), chain.tau)
    mesh = _move_nodes(chain, theta, state, number)
    if mesh is not None and mesh.pi is not None:
        chain = replace(chain, pi=mesh.pi)
    if chain.schedule.is_full(number):
        likely = np.zeros_like(state.active) if chain.schedule.finds_region(number) else None
        labels, moments = draw_labels(chain, theta, state.labels, chain.everywhere, number, rng, likely)
        rest, active = None, state.active
        if likely is not None:
            active = find_active_region(likely, labels.z + labels.y, chain.region)
    else:
        active = state.active
        labels, moments, rest = _draw_in_region(chain, theta, state, number, rng)
    changed = (labels.z ^ state.labels.z) | (labels.y ^ state.labels.y)
    moved = round(100 * mesh.accepted) if mesh is not None and chain.schedule.moves_nodes(number) else 0
    tumor, core, other = (int(np.count_nonzero(v)) for v in (labels.z, labels.y, changed))
    info = SweepInfo(number, tumor, core, other, moved)
    return ChainState(number, theta, labels, moments, active, rest, mesh), info


def _move_nodes(chain: Chain, theta: Theta, state: ChainState, number: int) -> nodes.MeshState | None:
    """Nodes of the sweep with their prior: moved if it is their turn. None if nodes are fixed."""
    mesh, now = chain.mesh, state.mesh
    if mesh is None or now is None:
        return None
    if chain.schedule.moves_nodes(number):
        L = nodes.find_likelihoods(mesh.placed, chain.volume, theta, state.labels.z, chain.tau)
        rng = np.random.default_rng([chain.seed, number, 1])
        now = nodes.move(mesh, now, L, rng, tunes=number <= chain.schedule.burn_in)
    elif now.moves == 0:
        return replace(now, pi=chain.pi)
    return nodes.with_prior(mesh, now, chain.volume)


def _draw_in_region(
    chain: Chain, theta: Theta, state: ChainState, number: int, rng: np.random.Generator
) -> tuple[Labels, Moments, Moments | None]:
    """Partial sweep: draw tumor in the active region only; draw the other rows or keep them."""
    if not chain.schedule.may_rest(number):
        return *draw_labels(chain, theta, state.labels, state.active, number, rng), None
    rows, labels, rest = np.asarray(state.active.any(2)), state.labels, state.rest
    if rest is None or chain.schedule.draws_rest(number) or chain.schedule.moves_nodes(number):
        labels, rest = draw_rest(chain, theta, labels, ~rows, number)
    labels, moments = draw_labels(chain, theta, labels, state.active, number, rng, rows=rows)
    return labels, moments + rest, rest


def draw_labels(
    chain: Chain,
    theta: Theta,
    labels: Labels,
    active: npt.NDArray[np.uint8],
    number: int,
    rng: np.random.Generator,
    likely: npt.NDArray[np.uint8] | None = None,
    rows: npt.NDArray[np.bool_] | None = None,
) -> tuple[Labels, Moments]:
    """Draw H^z and H^y given z and y, then l, z, y and t given them; one color after the other.

    z and y are drawn where `active` allows, and keep their values elsewhere. `rows` (X, Y) restricts the draw
    to these rows.
    """
    parts = []
    tumor, core = active >= 1, active >= 2
    level = labels.z + labels.y
    beyond = level > active
    reached = np.maximum(active, level) if beyond.any() else active
    for color in range(chain.colors):
        z = chain.shape_z.field(labels.z.view(bool), select_color(tumor, color, chain.colors), _draw_key(rng))
        y = chain.shape_y.field(labels.y.view(bool), select_color(core, color, chain.colors), _draw_key(rng))
        if chain.location is not None:
            z += chain.location
        if chain.location_y is not None:
            y += chain.location_y
        z, y = fix_field(z, chain.fixed_z), fix_field(y, chain.fixed_y)
        if reached is not active:
            z[beyond], y[beyond & (level == 2)] = np.inf, np.inf
        labels, moments = joint.draw(
            chain.volume,
            chain.pi,
            chain.groups,
            theta,
            (z, y),
            labels,
            key=(chain.seed, number * chain.colors + color),
            color=color if chain.colors > 1 else -1,
            active=reached,
            likely=likely,
            rows=rows,
            tau=chain.tau,
        )
        parts.append(moments)
    return labels, reduce(add, parts)


def draw_rest(
    chain: Chain, theta: Theta, labels: Labels, rows: npt.NDArray[np.bool_], number: int
) -> tuple[Labels, Moments]:
    """Draw l and t of `rows` (X, Y) without active tumor: voxels are independent, drawn all at once."""
    none = np.zeros(labels.z.shape, np.uint8)
    unread = np.zeros((0, 0, 0), np.float32)
    return joint.draw(
        chain.volume,
        chain.pi,
        chain.groups,
        theta,
        (unread, unread),
        labels,
        key=(chain.seed, number * chain.colors),
        active=none,
        rows=rows,
        tau=chain.tau,
    )


def iter_sweeps(
    chain: Chain, state: ChainState, config: GibbsConfig
) -> Iterator[tuple[ChainState, SweepInfo]]:
    """Run the chain from `state` to its end; the caller handles storage, progress and stopping."""
    while state.sweep < config.burn_in + config.samples:
        state, info = sweep(chain, state)
        yield state, info


def to_arrays(state: ChainState) -> dict[str, npt.NDArray]:
    """Arrays of a state, for storage."""
    theta, moments, labels = state.theta, state.moments, state.labels
    return {
        "sweep": np.array(state.sweep),
        "active": state.active,
        **{f"theta_{k}": v for k, v in vars(theta).items()},
        **{f"moments_{f.name}": getattr(moments, f.name) for f in fields(moments)},
        **{f"labels_{k}": v for k, v in vars(labels).items()},
        **({f"rest_{f.name}": getattr(state.rest, f.name) for f in fields(state.rest)} if state.rest else {}),
        **({f"mesh_{k}": v for k, v in nodes.to_arrays(state.mesh).items()} if state.mesh else {}),
    }


def from_arrays(arrays: Mapping[str, npt.NDArray]) -> ChainState:
    """Restore a state from the arrays of `to_arrays`."""

    def part(name: str) -> dict[str, npt.NDArray]:
        return {k.removeprefix(name): arrays[k] for k in arrays if k.startswith(name)}

    rest, mesh = part("rest_"), part("mesh_")
    return ChainState(
        int(arrays["sweep"]),
        Theta(**part("theta_")),
        Labels(**part("labels_")),
        Moments(**part("moments_")),
        arrays["active"],
        Moments(**rest) if rest else None,
        nodes.from_arrays(mesh) if mesh else None,
    )


def _draw_key(rng: np.random.Generator) -> int:
    return int(rng.integers(0, 2**63))
