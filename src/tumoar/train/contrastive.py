"""The paper's rule (section 3.2): contrastive divergence with one sweep (CD-1) and the enhanced gradient.

A step of 0.1 has a meaning only with the scale of the gradient, which the paper does not give. Here a
gradient is the mean over *all* voxels of the segmentations of a mini-batch, and the sum over the eight voxels
that share a tap: the log-likelihood of a map is a sum over its voxels, and this is its gradient per voxel.
Tumor is about one percent of a map. The same mean over boxes around tumor is tens of times larger, and a step
of 0.1 then diverges at once.

Nearly all of a map is empty. The sweep of a map differs from that of an empty map only where tumor reaches,
so all maps of a mini-batch share one period of random numbers, and the empty map is swept once
(`convolve_coupled`). The gradient has the expectation of independent sweeps. Probabilities stand for samples
of the hidden units on both sides of it; they are summed over a part of the units, drawn at random.

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
from scipy.special import expit, logit

from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH, Filters, M, R, pack
from tumoar.numerics.convolve_coupled import draw_change, draw_empty
from tumoar.numerics.convolve_moments import moments
from tumoar.train.shape import Difference, StepInfo, centered_gradient, monitor, require_norm, uncenter
from tumoar.train.shape_data import ByteArray, Shape, flip
from tumoar.train.shape_start import TIED, Parameters

FloatArray = npt.NDArray[np.float64]
_OWN = (slice(None, -REACH),) * 3  # as many voxels as hidden units
_REACHED = (slice(REACH, -REACH),) * 3  # voxels of a box padded by 2 REACH that its tumor can reach


@dataclass(frozen=True)
class ContrastiveTraining:
    """Settings; steps, step and batch are the paper's."""

    steps: int = 9600
    step: float = 0.1
    batch: int = 10  # segmentations
    thinning: int = 2  # of planes and rows of the random polyphase grid whose hidden units give the gradient
    period: int = 64  # of the random numbers of a sweep, in voxels; one period stands for all that is empty
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

    wh: FloatArray  # of v (h - lam)
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
    mu, lam = state.mu, state.lam
    batch = rng.choice(len(shapes), config.batch, replace=len(shapes) < config.batch)
    sums, places = sweep([shapes[number] for number in batch], state.parameters, lam, config, rng)
    rate = config.step / places
    # v h is centered on lam unit by unit: where units are left out, sums of v would not match those of v h
    g = centered_gradient(Difference(sums.wh, sums.h, sums.v), mu, np.zeros(M))
    move = uncenter(Parameters(rate * g.w, rate * g.b, rate * g.a), mu, lam)
    old = state.parameters
    parameters = Parameters(old.w + move.w, old.b + move.b, old.a + float(move.a))
    norm = float(np.sqrt((parameters.w**2).sum((1, 2, 3))).max())
    require_norm(norm, config.largest_norm)
    keep = config.offset_memory
    mu = keep * mu + (1 - keep) * sums.mean_v / places
    lam = keep * lam + (1 - keep) * sums.mean_h / places
    new = ContrastiveState(state.step + 1, parameters, mu, lam, dict(rng.bit_generator.state))
    sampled = sums.mean_v - sums.v / 2
    return new, StepInfo(new.step, sums.unequal / places, sampled / max(sums.data, 1.0), norm)


def sweep(
    shapes: Sequence[Shape],
    p: Parameters,
    lam: FloatArray,
    config: ContrastiveTraining,
    rng: np.random.Generator,
) -> tuple[Sums, int]:
    """Flip each map at random, sweep it once, and sum over all its voxels; returns also their number."""
    filters, period, key = pack(p.w, p.b), config.period, int(rng.integers(2**63))
    field = p.a + draw_empty(filters, period, key)
    threshold = logit(rng.random(field.shape, np.float32)) - field  # of a change that makes a voxel tumor
    noise = (threshold < 0).astype(np.uint8)
    near = sum(int(np.prod(np.array(s.v.shape) + 3 * REACH)) for s in shapes)
    places = max(sum(s.places for s in shapes), near)  # maps may be cropped
    sums, whole = Sums.zero(), np.pad(noise, (0, REACH), "wrap")
    _add(sums, np.zeros_like(whole), whole, filters, (places - near) / period**3, lam, config.thinning, rng)
    for shape in shapes:
        v = flip(shape.v, rng)
        i, j, k = (int(o) for o in rng.integers(period, size=3))
        at = [np.arange(-2 * REACH, n + 2 * REACH) + o for n, o in zip(v.shape, (i, j, k))]
        model = noise[np.ix_(*(x % period for x in at))]
        reached = np.ix_(*(x[REACH:-REACH] % period for x in at))
        model[_REACHED] = draw_change(v, filters, period, (i, j, k), key) > threshold[reached]
        _add(sums, np.pad(v, 2 * REACH), model, filters, 1.0, lam, config.thinning, rng)
    return sums, places


def _add(
    sums: Sums,
    data: ByteArray,
    model: ByteArray,
    filters: Filters,
    weight: float,
    lam: FloatArray,
    thinning: int,
    rng: np.random.Generator,
) -> None:
    """Add data and model of a box to the sums, by the hidden units that have all their voxels in it.

    Of the hidden units, some rows of one of the 8 polyphase grids stand for all.
    """
    grid, row, column = (int(rng.integers(n)) for n in (8, thinning, thinning))
    (G_d, p_d, _), (G_m, p_m, _) = (
        moments(x, filters, (grid,), thinning, (row, column), lam) for x in (data, model)
    )
    v_d, v_m = (float(x[_OWN].sum()) for x in (data, model))
    of_all = weight * 8 * thinning**2
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
