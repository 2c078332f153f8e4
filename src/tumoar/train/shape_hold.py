"""The last step of training: a tumor that is left alone stays what it is.

Two numbers decide whether a shape grows or shrinks under free sweeps, and the recovery likelihood of small
windows determines them badly. A flat surface stands still if empty and full surroundings are equally
probable: that sets the visible bias. A curved one moves if it has a tension; votes and balls give it one, and
filters that face a surface take it away, the more so the lower their threshold. That threshold is set such
that training shapes of all sizes keep their volume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from tumoar.errors import FitError
from tumoar.model.shape.base import free_sweeps
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH
from tumoar.train.shape_data import Shape
from tumoar.train.shape_start import balanced_bias

SHAPES = 6
SIZES = (4e3, 6e4)  # mm³: of the shapes that must hold; larger ones move less, and take longer
LOWEST, HIGHEST = -0.02, 0.12  # where to look for the change of threshold, relative to the filter's strength
PRECISION = 0.003  # of it
LARGEST = 1.0  # of a log ratio of volumes: that of a shape that is gone would drown the others


def held(
    model: CRBM, shapes: Sequence[Shape], sweeps: int, seed: int, tell: Callable[[float, float], None]
) -> tuple[CRBM, float]:
    """The model in balance, its surfaces' biases raised so that shapes hold; and by how many nats.

    `tell` hears of every trial: nats, and mean log volume after `sweeps` free sweeps.
    """
    strength = float(_strengths(model)[surfaces(model)].mean())
    chosen = spread(shapes, SHAPES)

    def growth(part: float) -> float:
        found = mean_growth(raised(model, part * strength), chosen, sweeps, seed)
        tell(part * strength, found)
        return found

    try:
        part = brentq(growth, LOWEST, HIGHEST, xtol=PRECISION)
    except ValueError as error:
        raise FitError(
            "shape-hold",
            "no threshold of the surfaces lets shapes keep their volume",
            do="train with other settings",
        ) from error
    return raised(model, part * strength), part * strength


def surfaces(model: CRBM) -> npt.NDArray[np.bool_]:
    """(M,) filters that are the same for empty and for full surroundings, and not zero."""
    strengths = _strengths(model)
    return (np.abs(model.full.sum((1, 2, 3))) < 1e-3 * strengths) & (strengths > 0)


def raised(model: CRBM, nats: float) -> CRBM:
    """The model with so much more bias on its surfaces, and the visible bias in balance."""
    b = (model.b + nats * surfaces(model)).astype(np.float32)
    return CRBM(model.w, b, balanced_bias(model.w.astype(float), b.astype(float)))


def spread(shapes: Sequence[Shape], count: int) -> list[Shape]:
    """Shapes of different patients, their volumes spread over `SIZES` on a log scale as far as they go."""
    left = {s.patient: s for s in shapes}
    out = []
    for size in np.geomspace(*SIZES, count):
        if left:
            nearest = min(left.values(), key=lambda s: abs(np.log(s.volume / size)))
            out.append(left.pop(nearest.patient))
    return out


def mean_growth(model: CRBM, shapes: Sequence[Shape], sweeps: int, seed: int) -> float:
    """Mean log of volume after free sweeps to volume before, each between −`LARGEST` and `LARGEST`."""
    logs = []
    for i, s in enumerate(shapes):
        after = free_sweeps(model, np.pad(s.v, REACH) > 0, sweeps, np.random.default_rng([seed, i]))
        logs.append(np.log((after.sum() + 1) / (s.volume + 1)))
    return float(np.clip(logs, -LARGEST, LARGEST).mean())


def _strengths(model: CRBM) -> npt.NDArray[np.float64]:
    return np.abs(model.full).sum((1, 2, 3))
