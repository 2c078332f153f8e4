"""Training a cRBM (Section 3.2): stochastic gradient ascent with the enhanced gradient.

The gradient is a difference of two expectations, under the data and under the model. Three ways to the second
are one algorithm with different settings. A pool holds Markov chains, each in its own window; every step
advances a few of them by one block-Gibbs sweep:

- contrastive divergence (`PAPER`): a chain starts at its data and lives for one sweep;
- persistent chains with restarts: it starts at its data and lives for `life_free` sweeps on average;
- recovery likelihood (the other chains under the default): the window's data are corrupted at a random rate
  r, and the chain samples p(v | corrupted data), the prior times a data term of ±log((1 − r)/r) per voxel.
  Ascending log p(data | corrupted data) fits the same model, but teaches it the use it is made for.

See docs/decisions/0010-shape-training.md for the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from tumoar.errors import FitError
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH, M, R, pack
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.convolve_moments import moments
from tumoar.train.shape_data import ByteArray, Patches, Shape, flips, patches_of, window

FloatArray = npt.NDArray[np.float64]
TIED = 8  # voxels that share one free tap
CHECK = 100  # steps from check to check
MONITOR = 200  # steps from one free-energy gap to the next
MONITORED = 2  # shapes on each side of the free-energy gap
LARGEST_FALL = 2.0  # nats per voxel
_PARAMETERS = ("parameters", "averaged", "momentum")


@dataclass(frozen=True)
class ShapeTraining:
    """Settings; the defaults are our own, `PAPER` has the paper's."""

    steps: int = 1200
    step: float = 0.003  # root mean square change of whitened taps at first, in nats; or the plain step size
    bias_step: float = 1.0  # that of the biases, relative to it
    scaled: bool = True  # steps of a set size, decaying to zero, along a moving average of the gradient
    floor: float = 0.3  # of the variances that whiten: bounds the steps of fine detail
    average_memory: float = 0.985  # of the parameters' moving average, the model that training yields
    batch: int = 4
    pool: int = 40
    window: int = 36
    margin: int = 12
    free_share: float = 0.3  # chains without data term
    life_free: float = 20.0
    life: float = 8.0
    rates: tuple[float, float] = (0.03, 0.3)
    grains: tuple[float, float] = (1.0, 3.0)
    blob_share: float = 0.5  # of the corrupted windows; the others are corrupted voxel by voxel
    # Filters that start as majority votes: of (2 n)³ voxels, and the nats they give a voxel deep inside.
    local: tuple[tuple[int, float], ...] = ((2, 3.0), (2, 3.0))
    start_scale: float = 0.1  # nats, inputs of the other filters; 0: all are small and random
    hidden_bias: float = -2.5  # input of those others from the mean patch
    offset_memory: float = 0.99
    largest_norm: float = 50.0


SETTINGS = {
    "y": ShapeTraining(),
    "z": ShapeTraining(
        steps=1400, free_share=0.1, life_free=10.0, life=16.0, rates=(0.03, 0.2), grains=(1.0, 2.5),
        blob_share=0.3, local=((1, 6.0), (2, 1.5), (2, 1.5)),
    ),
}  # fmt: skip
"""What the shipped priors were trained with, map by map."""

PAPER = ShapeTraining(
    steps=9600, step=0.1, bias_step=1.0, scaled=False, batch=10, pool=10, window=24, free_share=1.0,
    life_free=1.0, local=(), start_scale=0.0, hidden_bias=-2.0, average_memory=0.0,
)  # fmt: skip


class Parameters(NamedTuple):
    """w (M, R, R, R), b (M,), a; also a direction in that space."""

    w: FloatArray
    b: FloatArray
    a: float


class Difference(NamedTuple):
    """Data minus model, per voxel: moments of box sums and hidden units, of hidden units, of voxels."""

    wh: FloatArray
    h: FloatArray
    v: float


@dataclass(frozen=True)
class Chains:
    """The pool: data, current state and corrupted data of each window; log-odds of its data term, 0: none."""

    data: ByteArray
    state: ByteArray
    seen: ByteArray
    log_odds: npt.NDArray[np.float32]
    alive: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class State:
    """Everything the next step depends on."""

    step: int
    parameters: Parameters
    mu: float
    lam: FloatArray
    averaged: Parameters  # moving average of the parameters
    momentum: Parameters  # moving average of the gradient, filters in whitened coordinates
    square: FloatArray  # moving mean square of the gradient, per filter and per bias
    whiten: FloatArray  # (R³, R³) taps = whiten @ coordinates, whose unit changes inputs by about 1 nat
    chains: Chains
    turn: int
    rng: dict[str, Any]

    @property
    def model(self) -> CRBM:
        """The cRBM averaged over the last steps: single ones swing between too much tumor and too little."""
        w, b, a = self.averaged
        return CRBM(w.astype(np.float32), b.astype(np.float32), a)


class Info(NamedTuple):
    """What a progress display shows."""

    step: int
    error: float  # share of voxels in which chains differ from their data
    volume: float  # voxels of the chains relative to those of the data
    norm: float  # largest filter norm
    gap: float = np.nan  # free energy per voxel of unseen shapes above that of training shapes


def start(shapes: Sequence[Shape], config: ShapeTraining, seed: int) -> State:
    """Parameters and pool before the first step."""
    rng = np.random.default_rng(seed)
    mu = float(np.mean([s.volume / np.prod(np.array(s.v.shape) + 2 * config.margin) for s in shapes]))
    seen = patches_of(shapes, rng)
    w, b = _first_filters(seen, config, rng)
    lam = expit(b + TIED * w.reshape(M, -1) @ seen.mean) if config.start_scale else expit(b)
    # local filters are balanced between inside and outside; the others shift the mean of v by nothing
    a = -sum(strength for _, strength in config.local) if config.local else float(np.log(mu / (1 - mu)))
    a -= float(TIED * (lam * w.sum((1, 2, 3)))[len(config.local) :].sum())
    whiten = seen.components / (TIED * np.sqrt(seen.variances + config.floor))
    size = (config.pool, *(config.window + 2 * REACH,) * 3)
    empty = np.zeros(size, np.uint8)
    chains = Chains(
        empty, empty.copy(), empty.copy(), np.zeros(config.pool, np.float32), np.zeros(config.pool, bool)
    )
    still = Parameters(np.zeros_like(w), np.zeros_like(b), 0.0)
    first = Parameters(w, b, a)
    return State(
        0, first, mu, lam, first, still, np.zeros(2 * M + 1), whiten, chains, 0, dict(rng.bit_generator.state)
    )


def _first_filters(
    seen: Patches, config: ShapeTraining, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """w, b: a few local majority votes, then ± the leading components of the data, faintly."""
    if not config.start_scale:
        return rng.normal(0, 0.002, (M, R, R, R)), np.full(M, config.hidden_bias)
    n = len(config.local)
    count = (M - n + 1) // 2
    leading = (
        seen.components[:, :count] * config.start_scale / (TIED * np.sqrt(seen.variances[:count] + 1e-3))
    )
    w = np.concatenate([np.zeros((n, R**3)), leading.T, -leading.T])[:M]
    w[n:] += rng.normal(0, 0.03 * w.std(), w[n:].shape)
    b = config.hidden_bias - TIED * w @ seen.mean
    w = w.reshape(M, R, R, R)
    for m, (size, strength) in enumerate(config.local):
        # +strength is the input with all taps on, −strength with none; so is what it gives a voxel
        part = slice(R // 2, R // 2 + size)
        w[m, part, part, part] = 2 * strength / (TIED * size**3)
        b[m] = -strength
    return w, b


def train(
    shapes: Sequence[Shape], config: ShapeTraining, state: State, unseen: Sequence[Shape] = ()
) -> Iterator[tuple[State, Info]]:
    """States after each step from `state` on; FitError when training diverges: the last state is good.

    `unseen` shapes, of patients not trained on, are for the free-energy gap alone.
    """
    ours, theirs = (sorted(x, key=lambda s: s.volume)[len(x) // 4 :][:MONITORED] for x in (shapes, unseen))
    gap = np.nan
    while state.step < config.steps:
        state, info = advance(shapes, config, state)
        if state.step % CHECK == 0:
            _require_bounded(state.model.rise(ours[0].v))
        if theirs and state.step % MONITOR == 0:
            gap = free_energy_gap(state.model, ours, theirs)
        yield state, info._replace(gap=gap)


def free_energy_gap(model: CRBM, seen: Sequence[Shape], unseen: Sequence[Shape]) -> float:
    """Free energy per voxel of unseen shapes above that of training shapes; overfitting makes it grow."""
    return float(np.mean([model.rise(s.v) for s in unseen]) - np.mean([model.rise(s.v) for s in seen]))


def _require_bounded(rise: float) -> None:
    """A model under which a tumor is far more probable than none fills any box it is given."""
    if rise < -LARGEST_FALL:
        raise FitError(
            "shape-diverged",
            "the shape model prefers tumor everywhere",
            found=f"{-rise:.2f} nats per voxel",
            do="resume from the last checkpoint with a smaller step",
        )


def advance(shapes: Sequence[Shape], config: ShapeTraining, state: State) -> tuple[State, Info]:
    """One gradient step."""
    rng = np.random.default_rng()
    rng.bit_generator.state = state.rng
    filters = pack(state.parameters.w, state.parameters.b)
    inner = (slice(REACH, -REACH),) * 3
    region = np.zeros(state.chains.data.shape[1:], bool)
    region[inner] = True

    chains = Chains(*(x.copy() for x in vars(state.chains).values()))
    total = Difference(np.zeros((M, R, R, R)), np.zeros(M), 0.0)
    mean_v, mean_h, unequal, on_data, on_model = 0.0, np.zeros(M), 0, 0, 0
    for turn in range(state.turn, state.turn + config.batch):
        c = turn % config.pool
        _restart(chains, c, shapes, config, rng)
        data, seen = chains.data[c], chains.seen[c][inner]
        log_odds = draw_field(chains.state[c], region, filters, state.parameters.a, int(rng.integers(2**63)))[
            inner
        ]
        log_odds = log_odds + chains.log_odds[c] * (2 * seen.astype(np.float32) - 1)
        model = chains.state[c].copy()
        model[inner] = rng.random(log_odds.shape, np.float32) < expit(log_odds)
        chains.state[c] = model

        phase = (int(rng.integers(8)),)  # one of the 8 polyphase grids stands for all
        G_d, p_d, places = moments(data, filters, phase)
        G_m, p_m, _ = moments(model, filters, phase)
        v_d, v_m = int(data[inner].sum()), int(model[inner].sum())
        total = Difference(total.wh + 8 * (G_d - G_m), total.h + 8 * (p_d - p_m), total.v + v_d - v_m)
        mean_v += 0.5 * (v_d + v_m)
        mean_h += 0.5 * (p_d + p_m) / places
        unequal += int((data != model).sum())
        on_data, on_model = on_data + v_d, on_model + v_m

    voxels = config.batch * config.window**3
    keep = config.offset_memory
    mu = keep * state.mu + (1 - keep) * mean_v / voxels
    lam = keep * state.lam + (1 - keep) * mean_h / config.batch
    centered = centered_gradient(Difference(total.wh / voxels, total.h / voxels, total.v / voxels), mu, lam)
    momentum, square, direction = _direction(state, config, centered)
    parameters = _moved(state.parameters, uncentered(direction, mu, lam))
    averaged = _blended(state.averaged, parameters, config.average_memory)
    norm = float(np.sqrt((parameters.w**2).sum((1, 2, 3))).max())
    if not np.isfinite(norm) or norm > config.largest_norm:
        raise FitError(
            "shape-diverged", "training of the shape model diverged", found=f"filter norm {norm:.3g}",
            do="resume from the last checkpoint with a smaller step",
        )  # fmt: skip
    state = State(
        state.step + 1, parameters, mu, lam, averaged, momentum, square, state.whiten, chains,
        (state.turn + config.batch) % config.pool, dict(rng.bit_generator.state),
    )  # fmt: skip
    return state, Info(state.step, unequal / voxels, on_model / max(on_data, 1), norm)


def centered_gradient(d: Difference, mu: float, lam: npt.NDArray) -> Parameters:
    """Gradient in centered parameters: <(v − μ)(h − λ)> of data minus model, summed inside tied blocks."""
    w = d.wh - TIED * mu * d.h[:, None, None, None] - TIED * lam[:, None, None, None] * d.v
    return Parameters(w, d.h, d.v)


def uncentered(step: Parameters, mu: float, lam: npt.NDArray) -> Parameters:
    """The same step in the model's own parameters: the enhanced gradient (Cho 2011, Melchior 2013)."""
    tied = TIED * step.w.sum((1, 2, 3))
    return Parameters(step.w, step.b - mu * tied, step.a - float((lam * tied).sum()))


def _direction(
    state: State, config: ShapeTraining, g: Parameters
) -> tuple[Parameters, FloatArray, Parameters]:
    """The step along g, scaled for each filter by itself, otherwise one learns and the others idle.

    Filters move in whitened coordinates: in plain taps the mean density, whose variance is a thousand times
    that of fine detail, takes nearly all of each step.
    """
    if not config.scaled:
        step = Parameters(config.step * g.w, config.step * g.b, config.step * g.a)
        return state.momentum, state.square, step
    m, n = state.momentum, state.step + 1
    whitened = (g.w.reshape(M, -1) @ state.whiten).reshape(g.w.shape)
    momentum = Parameters(0.9 * m.w + 0.1 * whitened, 0.9 * m.b + 0.1 * g.b, 0.9 * m.a + 0.1 * g.a)
    squared = np.concatenate([np.square(whitened).mean((1, 2, 3)), np.square(g.b), [g.a**2]])
    square = 0.98 * state.square + 0.02 * squared
    size = config.step * min(1.0, n / 20) * max(0.03, 1 - state.step / config.steps)
    scale = size * np.sqrt(1 - 0.98**n) / (1 - 0.9**n) / (np.sqrt(square) + 1e-30)
    scale[M:] *= config.bias_step
    taps = (scale[:M, None] * momentum.w.reshape(M, -1)) @ state.whiten.T
    return (
        momentum,
        square,
        Parameters(taps.reshape(g.w.shape), scale[M : 2 * M] * momentum.b, float(scale[-1]) * momentum.a),
    )


def _blended(p: Parameters, q: Parameters, keep: float) -> Parameters:
    """keep p + (1 − keep) q."""
    new = 1 - keep
    return Parameters(keep * p.w + new * q.w, keep * p.b + new * q.b, keep * p.a + new * q.a)


def _moved(p: Parameters, step: Parameters) -> Parameters:
    return Parameters(p.w + step.w, p.b + step.b, p.a + float(step.a))


def _restart(
    chains: Chains, c: int, shapes: Sequence[Shape], config: ShapeTraining, rng: np.random.Generator
) -> None:
    """Give chain c a new window if it is unborn or dies."""
    life = config.life if chains.log_odds[c] else config.life_free
    if chains.alive[c] and rng.random() >= 1 / life:
        return
    data = window(shapes, config.window, config.margin, rng)
    chains.alive[c] = True
    chains.data[c] = chains.state[c] = chains.seen[c] = data
    chains.log_odds[c] = 0
    if rng.random() < config.free_share:
        return
    rate = rng.uniform(*config.rates)
    grain = rng.uniform(*config.grains) if rng.random() < config.blob_share else 0.0
    inner = (slice(REACH, -REACH),) * 3
    chains.seen[c][inner] ^= flips((config.window,) * 3, rate, grain, rng)
    chains.log_odds[c] = np.log((1 - rate) / rate)
    if rng.random() < 0.5:  # from both sides: half of the chains start at the corrupted data
        chains.state[c] = chains.seen[c]


def to_arrays(state: State) -> dict[str, npt.NDArray]:
    """A state as named arrays, for a checkpoint."""
    c = state.chains
    out = {
        "step": np.array(state.step), "mu": np.array(state.mu), "lam": state.lam, "square": state.square,
        "whiten": state.whiten, "data": np.packbits(c.data), "state": np.packbits(c.state),
        "seen": np.packbits(c.seen), "size": np.array(c.data.shape), "log_odds": c.log_odds, "alive": c.alive,
        "turn": np.array(state.turn), "rng": np.array(json.dumps(state.rng)),
    }  # fmt: skip
    for name in _PARAMETERS:
        for key, x in zip("wba", getattr(state, name)):
            out[f"{name}_{key}"] = np.array(x)
    return out


def from_arrays(x: dict[str, npt.NDArray]) -> State:
    """The state that `to_arrays` stored."""
    size = tuple(int(n) for n in x["size"])
    data, chain, seen = (
        np.unpackbits(x[k])[: int(np.prod(size))].reshape(size) for k in ("data", "state", "seen")
    )
    parameters, averaged, momentum = (
        Parameters(x[f"{name}_w"], x[f"{name}_b"], float(x[f"{name}_a"])) for name in _PARAMETERS
    )
    return State(
        int(x["step"]), parameters, float(x["mu"]), x["lam"], averaged, momentum, x["square"], x["whiten"],
        Chains(data, chain, seen, x["log_odds"], x["alive"]), int(x["turn"]), json.loads(str(x["rng"])),
    )  # fmt: skip
