"""The fitted intensity model for display: histograms, Gaussians, constraints, bias fields."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import HOUNSFIELD_UNIT
from tumoar.model.bias import field
from tumoar.model.gmm import Theta
from tumoar.numerics.threads import map_threads
from tumoar.report.pictures import diverging, plane
from tumoar.report.volumes import brain, center, unit
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.contrasts import MeanConstraint, select_constraints
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable

BINS = 120
LEAST_SHARE = 0.001
"""Fraction of the brain below which mixtures are not drawn."""


def intensity_models(result: Segmentation) -> list[dict[str, Any]]:
    """Histogram of the bias-corrected brain and the mixtures of θ, for each contrast.

    Mixtures are weighted by the votes, so that their sum should follow the histogram.
    """
    table, theta, case = result.table, result.theta, result.case
    where = brain(result) & case.valid.all(0)
    shares = np.bincount(_mixtures(result)[where], minlength=table.X) / max(int(where.sum()), 1)
    out = []
    for n, contrast in enumerate(case.contrasts):
        scale = 1.0 if contrast.is_mr else HOUNSFIELD_UNIT
        values = scale * (case.D[n][where] - _bias(theta, n, case.grid.shape)[where])
        low, high = np.percentile(values, [0.05, 99.95]) if len(values) else (0.0, 1.0)
        counts, edges = np.histogram(values, BINS, (low, max(high, low + 1e-6)))
        density = counts / max(len(values), 1) / np.diff(edges)
        out.append(
            {
                "name": contrast.name,
                "unit": unit(contrast),
                "edges": [float(edges[0]), float(edges[-1])],
                "density": density.round(6).tolist(),
                "components": _components(table, theta, shares, n, scale),
                "constraints": [
                    _constraint(table, theta, c, n, scale)
                    for c in select_constraints(contrast, table)
                    if table.has_tumor or table.gmms[table.x_named(c.gmm)].role == "normal"
                ],
            }
        )
    return out


def bias_fields(result: Segmentation, visible: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Multiplicative bias field of each MR contrast: an axial picture, and the range in the brain.

    The field is known up to a constant; it is shown relative to its median in the brain, where `visible`
    (N, X, Y, Z).
    """
    inside, at = brain(result), center(result)

    def one(n: int) -> dict[str, Any]:
        b = _bias(result.theta, n, result.case.grid.shape)
        b = b - np.median(b[inside])
        low, high = np.percentile(b[inside], [1, 99])
        reach = max(abs(low), abs(high), 0.05)
        shown = np.where(result.case.valid[n] & visible[n], b / reach, np.nan)
        return {
            "name": result.case.contrasts[n].name,
            "low": float(np.exp(low)),
            "high": float(np.exp(high)),
            "reach": float(np.exp(reach)),
            "png": diverging(plane(shown, 2, int(at[2]))),
        }

    known = [n for n, c in enumerate(result.case.contrasts) if c.bias_field and inside.any()]
    return map_threads(one, known)


def _bias(theta: Theta, n: int, shape: tuple[int, ...]) -> npt.NDArray[np.floating]:
    return field(theta.C[n : n + 1], shape)[0]


def _mixtures(result: Segmentation) -> npt.NDArray[np.int64]:
    """(X, Y, Z) x(l, z, y) of the vote."""
    table, votes = result.table, result.votes
    x = table.x_of_l[votes.l]
    x[votes.z == 1] = table.edema
    x[votes.y == 1] = table.core
    if table.cavity is not None:
        x[votes.l == table.cavity] = table.x_of_l[table.cavity]
    return x


def _components(
    table: LabelTable, theta: Theta, shares: npt.NDArray[np.floating], n: int, scale: float
) -> list[dict[str, Any]]:
    rows = []
    for q, x in enumerate(table.x_of_component):
        if shares[x] >= LEAST_SHARE:
            rows.append(
                {
                    "mixture": table.gmms[x].name,
                    "color": _color(table, int(x)),
                    "weight": float(shares[x] * theta.gamma[q]),
                    "mean": scale * float(theta.mu[q, n]),
                    "sd": scale * math.sqrt(theta.Sigma[q, n, n]),
                }
            )
    return rows


def _color(table: LabelTable, x: int) -> str:
    gmm = table.gmms[x]
    if gmm.role in TUMOR_STATES:
        return next(t.color for t in table.tumor if t.name == gmm.role)
    return next(s.color for s in table.structures if s.gmm == gmm.name)


def _constraint(table: LabelTable, theta: Theta, c: MeanConstraint, n: int, scale: float) -> dict[str, Any]:
    """A bound on a mean of this contrast, and the mean."""
    refs = np.concatenate([theta.mu[table.component_slice(table.x_named(ref)), n] for ref in c.refs])
    own = theta.mu[table.component_slice(table.x_named(c.gmm)), n]
    own = own if c.component is None else own[[c.component]]
    bound = (refs.max() if c.op == ">=" else refs.min()) + c.log_offset
    return {
        "mixture": c.gmm + ("" if c.component is None else f" (component {c.component + 1})"),
        "color": _color(table, table.x_named(c.gmm)),
        "op": "≥" if c.op == ">=" else "≤",
        "factor": math.exp(c.log_offset),
        "refs": list(c.refs),
        "bound": scale * float(bound),
        "mean": scale * float(own.min() if c.op == ">=" else own.max()),
    }
