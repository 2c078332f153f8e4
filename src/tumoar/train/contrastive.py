"""The paper's rule (section 3.2): contrastive divergence with one sweep (CD-1) and the enhanced gradient.

A step of 0.1 has a meaning only with the scale of the gradient, which the paper does not give. Here a
gradient is the mean over *all* voxels of the segmentations of a mini-batch, and the sum over the eight voxels
that share a tap: the log-likelihood of a map is a sum over its voxels, and this is its gradient per voxel.
Tumor is about one percent of a map. The same mean over windows around tumor is two orders of magnitude
larger, and a step of 0.1 then diverges at once.

Nearly all of a map is empty. Where tumor does not reach, voxels and hidden units have the same distribution
before and after the sweep, whatever the place, so a sample in a small empty box stands for all of them. What
tumor reaches is used whole.

The offsets of the enhanced gradient (Cho et al. 2011) are halfway between data and model, as moving averages,
which keeps it from diverging (Melchior et al. 2013).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d
from scipy.special import expit

from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH, Filters, M, R, pack
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.convolve_moments import moments
from tumoar.train.shape import Difference, StepInfo, centered_gradient, monitor, require_norm, uncenter
from tumoar.train.shape_data import ByteArray, Shape, flip
from tumoar.train.shape_start import TIED, Parameters

FloatArray = npt.NDArray[np.float64]
_OWN = (slice(None, -REACH),) * 3  # as many voxels as hidden units


@dataclass(frozen=True)
class ContrastiveTraining:
    """Settings; steps, step and batch are the paper's."""

    steps: int = 9600
    step: float = 0.1
    batch: int = 10  # segmentations
    phases: int = 1  # number of the 8 polyphase grids of hidden units used for a gradient, drawn at random
    empty: int = 32  # side of the box that stands for the empty part of a map
    hidden_bias: float = -2.0  # at the start
    filter_sd: float = 0.002  # of random taps at the start
    offset_memory: float = 0.99
    largest_norm: float = 50.0


@dataclass(frozen=True)
class ContrastiveState:
    """State of the training: all that the next step depends on."""

    step: int
    parameters: Parameters
    mu: float
    lam: FloatArray
    rng: dict[str, Any]

    @property
    def model(self) -> CRBM:
        """The cRBM of the last step."""
        w, b, a = self.parameters
        return CRBM(w.astype(np.float32), b.astype(np.float32), a)


@dataclass
class Sums:
    """Sums over the voxels and hidden units of a mini-batch, of data minus model and of their mean."""

    wh: FloatArray
    h: FloatArray
    mean_h: FloatArray
    v: float = 0.0
    mean_v: float = 0.0
    unequal: float = 0.0
    data: float = 0.0

    @classmethod
    def zero(cls) -> Sums:
        """Nothing summed."""
        return cls(np.zeros((M, R, R, R)), np.zeros(M), np.zeros(M))


def initialize(shapes: Sequence[Shape], config: ContrastiveTraining, seed: int) -> ContrastiveState:
    """Small random filters, and a visible bias that preserves the mean of v."""
    rng = np.random.default_rng(seed)
    mu = sum(s.volume for s in shapes) / sum(s.places for s in shapes)
    w, b = rng.normal(0, config.filter_sd, (M, R, R, R)), np.full(M, config.hidden_bias)
    a = float(np.log(mu / (1 - mu)) - TIED * (expit(b) * w.sum((1, 2, 3))).sum())
    return ContrastiveState(0, Parameters(w, b, a), mu, expit(b), dict(rng.bit_generator.state))


def train(
    shapes: Sequence[Shape],
    config: ContrastiveTraining,
    state: ContrastiveState,
    unseen: Sequence[Shape] = (),
) -> Iterator[tuple[ContrastiveState, StepInfo]]:
    """Yield the state after each step; raises FitError if training diverges, and the last state is valid."""

    def steps(state: ContrastiveState) -> Iterator[tuple[ContrastiveState, StepInfo]]:
        while state.step < config.steps:
            state, info = advance(shapes, config, state)
            yield state, info

    return monitor(steps(state), shapes, unseen)


def advance(
    shapes: Sequence[Shape], config: ContrastiveTraining, state: ContrastiveState
) -> tuple[ContrastiveState, StepInfo]:
    """One gradient step."""
    rng = np.random.default_rng()
    rng.bit_generator.state = state.rng
    filters, a = pack(state.parameters.w, state.parameters.b), state.parameters.a
    batch = rng.choice(len(shapes), config.batch, replace=len(shapes) < config.batch)
    chosen = [shapes[number] for number in batch]
    sums, side = Sums.zero(), config.empty + REACH
    nothing = np.zeros((side,) * 3, np.uint8)
    noise = _sweep(nothing, np.ones(nothing.shape, bool), filters, a, rng)
    near = sum(int(np.prod(np.array(s.v.shape) + 3 * REACH)) for s in chosen)
    places = max(sum(s.places for s in chosen), near)  # maps may be cropped
    _add(sums, nothing, noise, filters, (places - near) / config.empty**3, config.phases, rng)
    for shape in chosen:
        data = np.pad(flip(shape.v, rng), 2 * REACH)
        model = noise[np.ix_(*(np.arange(n) % side for n in data.shape))].copy()
        reached = find_reached(data)
        model[reached] = _sweep(data, reached, filters, a, rng)[reached]
        _add(sums, data, model, filters, 1.0, config.phases, rng)
    keep = config.offset_memory
    mu = keep * state.mu + (1 - keep) * sums.mean_v / places
    lam = keep * state.lam + (1 - keep) * sums.mean_h / places
    rate = config.step / places
    g = centered_gradient(Difference(sums.wh, sums.h, sums.v), mu, lam)
    move = uncenter(Parameters(rate * g.w, rate * g.b, rate * g.a), mu, lam)
    old = state.parameters
    parameters = Parameters(old.w + move.w, old.b + move.b, old.a + float(move.a))
    norm = float(np.sqrt((parameters.w**2).sum((1, 2, 3))).max())
    require_norm(norm, config.largest_norm)
    new = ContrastiveState(state.step + 1, parameters, mu, lam, dict(rng.bit_generator.state))
    sampled = sums.mean_v - sums.v / 2
    return new, StepInfo(new.step, sums.unequal / places, sampled / max(sums.data, 1.0), norm)


def find_reached(v: ByteArray) -> npt.NDArray[np.bool_]:
    """Voxels whose sample depends on v: those that share a hidden unit with one of its voxels."""
    for axis in range(v.ndim):
        v = maximum_filter1d(v, 2 * REACH + 1, axis=axis, mode="constant")
    return v > 0


def _sweep(
    v: ByteArray, region: npt.NDArray[np.bool_], filters: Filters, a: float, rng: np.random.Generator
) -> ByteArray:
    """One block-Gibbs sweep of the voxels in a region; v is zero outside its grid."""
    log_odds = draw_field(v, region, filters, a, int(rng.integers(2**63)))
    return ((rng.random(v.shape, np.float32) < expit(log_odds)) & region).astype(np.uint8)


def _add(
    sums: Sums,
    data: ByteArray,
    model: ByteArray,
    filters: Filters,
    weight: float,
    phases: int,
    rng: np.random.Generator,
) -> None:
    """Add data and model of a box to the sums, by the hidden units that have all their voxels in it."""
    grids = tuple(int(p) for p in rng.permutation(8)[:phases])
    (G_d, p_d, _), (G_m, p_m, _) = (moments(x, filters, grids) for x in (data, model))
    v_d, v_m = (float(x[_OWN].sum()) for x in (data, model))
    of_all = weight * 8 / phases
    sums.wh += of_all * (G_d - G_m)
    sums.h += of_all * (p_d - p_m)
    sums.mean_h += of_all * 0.5 * (p_d + p_m)
    sums.v += weight * (v_d - v_m)
    sums.mean_v += weight * 0.5 * (v_d + v_m)
    sums.unequal += weight * float((data != model)[_OWN].sum())
    sums.data += weight * v_d


def to_arrays(state: ContrastiveState) -> dict[str, npt.NDArray]:
    """Arrays of a state, for a checkpoint."""
    w, b, a = state.parameters
    return {
        "step": np.array(state.step), "w": w, "b": b, "a": np.array(a), "mu": np.array(state.mu),
        "lam": state.lam, "rng": np.array(json.dumps(state.rng)),
    }  # fmt: skip


def from_arrays(x: dict[str, npt.NDArray]) -> ContrastiveState:
    """Restore a state from the arrays of `to_arrays`."""
    parameters = Parameters(x["w"], x["b"], float(x["a"]))
    return ContrastiveState(int(x["step"]), parameters, float(x["mu"]), x["lam"], json.loads(str(x["rng"])))
