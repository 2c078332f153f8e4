"""Dose-volume curves for the report and as image files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tumoar.radiotherapy.dvh import Sampled
from tumoar.report.verbatim import verbatim

POINTS = 201


def curve(name: str, color: str, found: Sampled, top: float) -> dict[str, Any]:
    """Curve for the report: percentage of the volume over Gy, with a band if there are samples."""
    doses = np.linspace(0, top, POINTS)
    out: dict[str, Any] = {
        "name": name,
        "color": color,
        "dose": np.round(doses, 3).tolist(),
        "volume": np.round(found.dvh.V(doses), 2).tolist(),
    }
    if any(s.volume for s in found.samples):
        band = found.band(0.90, doses)
        out |= {"low": np.round(band.low, 2).tolist(), "high": np.round(band.high, 2).tolist()}
    return out


def picture(
    paths: Sequence[Path], curves: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> None:
    """Draw cumulative histograms as solid lines, 90 % bands shaded, references dashed."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    colors = {c["name"]: c["color"] for c in curves}
    for c in curves:
        axes.plot(c["dose"], c["volume"], color=c["color"], label=verbatim(c["name"]))
        if "low" in c:
            axes.fill_between(c["dose"], c["low"], c["high"], color=c["color"], alpha=0.2, linewidth=0)
    for c in references:
        axes.plot(c["dose"], c["volume"], "--", color=colors.get(c["name"], c["color"]))
    if references:
        axes.plot([], [], "--", color="0.3", label="reference")
    axes.set(xlabel="dose, Gy", ylabel="volume, %", ylim=(0, 102), xlim=(0, None))
    axes.grid(alpha=0.3)
    if curves or references:
        axes.legend(fontsize=8, ncol=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs are drawn as boxes
        for path in paths:
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
