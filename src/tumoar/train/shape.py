"""Train a cRBM by stochastic gradient ascent; the paper's own rule is in `contrastive`.

The gradient is a difference of two expectations, under the data and under the model. The second is estimated
by a pool of Markov chains, each in its own window; every step advances some of them by block-Gibbs sweeps:

- persistent chains with restarts: a chain starts at its data and lasts for `life_free` turns on average; it
  samples a random box of its window given the surroundings;
- recovery likelihood (the other chains): the window's data are corrupted voxel by voxel at a random rate r,
  and the chain samples p(v | corrupted data), the prior times a data term of ±log((1 − r)/r) per voxel.

Both kinds of chains ascend conditional likelihoods of the same p(v), log p(box | surroundings) and
log p(data | corrupted data): consistent, like the likelihood itself, but with chains that converge. For core,
some windows are corrupted in blobs instead, while the data term assumes single voxels: this teaches the model
to reject small components even if the data seem to support them. Steps follow the natural gradient in the
parameters of a `Family`.

See docs/decisions/0010-shape-training.md for the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH, Filters, pack
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.convolve_moments import moments
from tumoar.train.shape_data import ByteArray, Shape, draw_flips, draw_window
from tumoar.train.shape_start import TIED, Family, Parameters, build_first_model
from tumoar.vocabulary.errors import FitError

FloatArray = npt.NDArray[np.float64]
CHECK = 100  # steps between checks
MONITOR = 200  # steps between evaluations of the free-energy gap
MONITORED = 2  # shapes on each side of the free-energy gap
FISHER_MEMORY = 60  # steps
WARM_UP = 15  # steps
LARGEST_FALL = 2.0  # nats per voxel
SMALLER = "train again with a smaller --step, and other --checkpoints"
_PARAMETERS = ("parameters", "averaged")


@dataclass(frozen=True)
class ShapeTraining:
    """Settings of the training; `SETTINGS` has those of each map."""

    steps: int = 400
    step: float = 0.1  # along the natural gradient
    steady: float = 0.3  # fraction of steps before the natural step decreases, to a twentieth at the end
    damping: float = 0.02  # of the Fisher information of a window
    largest_move: float = 6.0  # maximum squared Fisher norm of a step of 1 along the natural gradient
    average_memory: float = 0.98  # of the moving average of parameters, which is the trained model
    batch: int = 16
    pool: int = 64
    window: int = 36
    margin: int = 8
    phases: int = 8  # number of the 8 polyphase grids of hidden units used for a gradient
    free_share: float = 0.35  # fraction of chains without data term
    free_box: tuple[int, int] | None = (
        10,
        36,
    )  # range of sides of the box such a chain samples; None: window
    free_sweeps: int = 3  # per turn of such a chain
    sweeps: int = 2  # per turn of the other chains
    life_free: float = 20.0  # turns
    life: float = 12.0
    rates: tuple[float, float] = (0.05, 0.35)
    blob_share: float = 0.0  # fraction of corrupted windows with blobs, for which the data term is wrong
    blob_rates: tuple[float, float] = (0.04, 0.2)
    grains: tuple[float, float] = (1.0, 2.6)
    from_data: float = 0.5  # fraction of chains with a data term that start at the data; others start at the
    burn_in: int = 15  # corrupted data and count after this many sweeps
    largest_norm: float = 50.0


# Without blobs in training, a core map accepts them; a tumor map does not (decision 0010).
SETTINGS = {"z": ShapeTraining(steps=600), "y": ShapeTraining(blob_share=0.15)}


class Difference(NamedTuple):
    """Data minus model in a window: moments of box sums and hidden units, of hidden units, of voxels."""

    wh: FloatArray
    h: FloatArray
    v: float


@dataclass(frozen=True)
class Chains:
    """The pool: data, current state and corrupted data of each window; log-odds of its data term, 0: none.

    `box` (pool, 2, 3) is the first voxel that a chain samples, and one past the last, along each axis.
    """

    data: ByteArray
    state: ByteArray
    seen: ByteArray
    log_odds: npt.NDArray[np.float32]
    alive: npt.NDArray[np.bool_]
    box: npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShapeState:
    """State of the training: all that the next step depends on."""

    step: int
    parameters: Parameters
    averaged: Parameters  # moving average of the parameters
    family: Family  # directions of training
    fisher: FloatArray  # (d, d) moving mean of outer products of the chains' gradients along them
    chains: Chains
    turn: int
    rng: dict[str, Any]

    @property
    def model(self) -> CRBM:
        """The cRBM averaged over the last steps, because tumor volume oscillates between steps."""
        w, b, a = self.averaged
        return CRBM(w.astype(np.float32), b.astype(np.float32), a)


class HasModel(Protocol):
    """State of any training."""

    @property
    def model(self) -> CRBM:
        """The trained model so far."""
        ...


State = TypeVar("State", bound=HasModel)


class StepInfo(NamedTuple):
    """Figures for progress display."""

    step: int
    error: float  # fraction of voxels in which chains differ from their data
    volume: float  # voxels of the chains relative to those of the data
    norm: float  # largest filter norm
    gap: float = np.nan  # free energy per voxel of unseen shapes above that of training shapes


def initialize(shapes: Sequence[Shape], config: ShapeTraining, seed: int) -> ShapeState:
    """Parameters and pool before the first step."""
    rng = np.random.default_rng(seed)
    first, family = build_first_model()
    empty = np.zeros((config.pool, *(config.window + 2 * REACH,) * 3), np.uint8)
    chains = Chains(
        empty, empty.copy(), empty.copy(), np.zeros(config.pool, np.float32), np.zeros(config.pool, bool),
        np.zeros((config.pool, 2, 3), int),
    )  # fmt: skip
    fisher = np.zeros((family.size, family.size))
    return ShapeState(0, first, first, family, fisher, chains, 0, dict(rng.bit_generator.state))


def train(
    shapes: Sequence[Shape], config: ShapeTraining, state: ShapeState, unseen: Sequence[Shape] = ()
) -> Iterator[tuple[ShapeState, StepInfo]]:
    """Yield the state after each step; raises FitError if training diverges, and the last state is valid.

    `unseen` shapes, of patients not trained on, are used only for the free-energy gap.
    """

    def steps(state: ShapeState) -> Iterator[tuple[ShapeState, StepInfo]]:
        while state.step < config.steps:
            state, info = advance(shapes, config, state)
            yield state, info

    return monitor(steps(state), shapes, unseen)


def monitor(
    steps: Iterable[tuple[State, StepInfo]], shapes: Sequence[Shape], unseen: Sequence[Shape]
) -> Iterator[tuple[State, StepInfo]]:
    """Pass the steps of a training on, with the free-energy gap; raises FitError if tumor fills any box."""
    ours, theirs = (sorted(x, key=lambda s: s.volume)[len(x) // 4 :][:MONITORED] for x in (shapes, unseen))
    gap = np.nan
    for state, info in steps:
        if info.step % CHECK == 0:
            _require_bounded(state.model.free_energy_rise(ours[0].v))
        if theirs and info.step % MONITOR == 0:
            gap = free_energy_gap(state.model, ours, theirs)
        yield state, info._replace(gap=gap)


def free_energy_gap(model: CRBM, seen: Sequence[Shape], unseen: Sequence[Shape]) -> float:
    """Free energy per voxel of unseen shapes minus that of training shapes; grows with overfitting."""
    return float(
        np.mean([model.free_energy_rise(s.v) for s in unseen])
        - np.mean([model.free_energy_rise(s.v) for s in seen])
    )


def _require_bounded(rise: float) -> None:
    """Raise FitError if tumor is far more probable than none: such a model fills any box."""
    if rise < -LARGEST_FALL:
        raise FitError(
            "shape-diverged",
            "the shape model prefers tumor everywhere",
            found=f"{-rise:.2f} nats per voxel",
            do=SMALLER,
        )


def require_norm(norm: float, largest: float) -> None:
    """Raise FitError if filters have grown beyond any use."""
    if not np.isfinite(norm) or norm > largest:
        found = f"filter norm {norm:.3g}"
        raise FitError("shape-diverged", "training of the shape model diverged", found=found, do=SMALLER)


def advance(shapes: Sequence[Shape], config: ShapeTraining, state: ShapeState) -> tuple[ShapeState, StepInfo]:
    """One gradient step."""
    rng = np.random.default_rng()
    rng.bit_generator.state = state.rng
    filters = pack(state.parameters.w, state.parameters.b)
    inner = (slice(REACH, -REACH),) * 3
    chains = Chains(*(x.copy() for x in vars(state.chains).values()))
    differences = []
    unequal, on_data, on_model = 0, 0, 0
    for turn in range(state.turn, state.turn + config.batch):
        c = turn % config.pool
        late = _restart(chains, c, shapes, config, rng)
        sweeps = config.sweeps if chains.log_odds[c] else config.free_sweeps
        for _ in range(sweeps + config.burn_in * late):
            _sweep(chains, c, filters, state.parameters.a, rng)
        data, model = chains.data[c], chains.state[c]
        phases = tuple(int(p) for p in rng.permutation(8)[: config.phases])  # a random subset
        G_d, p_d, _ = moments(data, filters, phases)
        G_m, p_m, _ = moments(model, filters, phases)
        v_d, v_m = int(data[inner].sum()), int(model[inner].sum())
        of_all = 8 / config.phases
        differences.append(Difference(of_all * (G_d - G_m), of_all * (p_d - p_m), float(v_d - v_m)))
        unequal += int((data != model).sum())
        on_data, on_model = on_data + v_d, on_model + v_m

    voxels = config.batch * config.window**3
    fisher, move = natural_step(differences, state, config)
    parameters = _move(state.parameters, move)
    averaged = _blend(state.averaged, parameters, config.average_memory)
    norm = float(np.sqrt((parameters.w**2).sum((1, 2, 3))).max())
    require_norm(norm, config.largest_norm)
    state = ShapeState(
        state.step + 1, parameters, averaged, state.family, fisher, chains,
        (state.turn + config.batch) % config.pool, dict(rng.bit_generator.state),
    )  # fmt: skip
    return state, StepInfo(state.step, unequal / voxels, on_model / max(on_data, 1), norm)


def _sweep(chains: Chains, c: int, filters: Filters, a: float, rng: np.random.Generator) -> None:
    """One block-Gibbs sweep of chain c in its box."""
    box = tuple(slice(first, end) for first, end in chains.box[c].T)
    region = np.zeros(chains.state[c].shape, bool)
    region[box] = True
    log_odds = draw_field(chains.state[c], region, filters, a, int(rng.integers(2**63)))[box]
    log_odds = log_odds + chains.log_odds[c] * (2 * chains.seen[c][box].astype(np.float32) - 1)
    chains.state[c][box] = rng.random(log_odds.shape, np.float32) < expit(log_odds)


def centered_gradient(d: Difference, mu: float, lam: npt.NDArray) -> Parameters:
    """Gradient in centered parameters: <(v − μ)(h − λ)> of data minus model, summed inside tied blocks."""
    w = d.wh - TIED * mu * d.h[:, None, None, None] - TIED * lam[:, None, None, None] * d.v
    return Parameters(w, d.h, d.v)


def uncenter(step: Parameters, mu: float, lam: npt.NDArray) -> Parameters:
    """Convert a centered step to model parameters: the enhanced gradient (Cho 2011, Melchior 2013)."""
    tied = TIED * step.w.sum((1, 2, 3))
    return Parameters(step.w, step.b - mu * tied, step.a - float((lam * tied).sum()))


def natural_step(
    differences: Sequence[Difference], state: ShapeState, config: ShapeTraining
) -> tuple[FloatArray, Parameters]:
    """Fisher information and step along the natural gradient, nearly independent of parametrization.

    Strengths, biases and tumor volume are coupled, and the volume has by far the largest curvature: the plain
    gradient would oscillate in volume before anything else changes.
    """
    g = np.array([state.family.along(d) for d in differences])
    keep = 1 - 1 / min(state.step + 1, FISHER_MEMORY)
    fisher = keep * state.fisher + (1 - keep) * g.T @ g / len(g)
    damping = config.damping * (1 + 20 / (1 + state.step / 5))  # few samples at first
    move = np.linalg.solve(fisher + damping * np.eye(len(fisher)), g.mean(0))
    move *= min(1.0, np.sqrt(config.largest_move / max(float(move @ fisher @ move), 1e-12)))
    left = (1 - state.step / config.steps) / (1 - config.steady)
    rate = config.step * min(1.0, max(0.05, left), (state.step + 1) / WARM_UP)
    return fisher, state.family.step(rate * move)


def _blend(p: Parameters, q: Parameters, keep: float) -> Parameters:
    """keep p + (1 − keep) q."""
    new = 1 - keep
    return Parameters(keep * p.w + new * q.w, keep * p.b + new * q.b, keep * p.a + new * q.a)


def _move(p: Parameters, step: Parameters) -> Parameters:
    return Parameters(p.w + step.w, p.b + step.b, p.a + float(step.a))


def _restart(
    chains: Chains, c: int, shapes: Sequence[Shape], config: ShapeTraining, rng: np.random.Generator
) -> bool:
    """Give chain c a new window if it is new or ends; returns whether it starts far from its data."""
    life = config.life if chains.log_odds[c] else config.life_free
    if chains.alive[c] and rng.random() >= 1 / life:
        return False
    data = draw_window(shapes, config.window, config.margin, rng)
    chains.box[c] = [[REACH] * 3, [REACH + config.window] * 3]
    chains.alive[c] = True
    chains.data[c] = chains.state[c] = chains.seen[c] = data
    chains.log_odds[c] = 0
    if rng.random() < config.free_share:
        if config.free_box is not None:
            side = int(rng.integers(config.free_box[0], min(config.free_box[1], config.window) + 1))
            corner = REACH + rng.integers(config.window - side + 1, size=3)
            chains.box[c] = [corner, corner + side]
        return False
    is_blobs = config.blob_share > 0 and rng.random() < config.blob_share
    rate = rng.uniform(*(config.blob_rates if is_blobs else config.rates))
    grain = rng.uniform(*config.grains) if is_blobs else 0.0
    inner = (slice(REACH, -REACH),) * 3
    chains.seen[c][inner] ^= draw_flips((config.window,) * 3, rate, grain, rng)
    chains.log_odds[c] = np.log((1 - rate) / rate)
    if rng.random() < config.from_data:
        return False
    chains.state[c] = chains.seen[c]
    return True


def to_arrays(state: ShapeState) -> dict[str, npt.NDArray]:
    """Arrays of a state, for a checkpoint."""
    c = state.chains
    out = {
        "step": np.array(state.step), "fisher": state.fisher,
        "data": np.packbits(c.data), "state": np.packbits(c.state),
        "seen": np.packbits(c.seen), "size": np.array(c.data.shape), "log_odds": c.log_odds, "alive": c.alive,
        "box": c.box,
        "turn": np.array(state.turn), "rng": np.array(json.dumps(state.rng)),
    }  # fmt: skip
    for name in _PARAMETERS:
        for key, x in zip("wba", getattr(state, name)):
            out[f"{name}_{key}"] = np.array(x)
    return out


def from_arrays(x: dict[str, npt.NDArray]) -> ShapeState:
    """Restore a state from the arrays of `to_arrays`."""
    size = tuple(int(n) for n in x["size"])
    data, chain, seen = (
        np.unpackbits(x[k])[: int(np.prod(size))].reshape(size) for k in ("data", "state", "seen")
    )
    parameters, averaged = (
        Parameters(x[f"{name}_w"], x[f"{name}_b"], float(x[f"{name}_a"])) for name in _PARAMETERS
    )
    family = build_first_model()[1]
    chains = Chains(data, chain, seen, x["log_odds"], x["alive"], x["box"])
    return ShapeState(
        int(x["step"]), parameters, averaged, family, x["fisher"], chains,
        int(x["turn"]), json.loads(str(x["rng"])),
    )  # fmt: skip
