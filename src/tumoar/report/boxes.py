"""Box plots of scores per structure, as in the figures of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tumoar.report.verbatim import verbatim
from tumoar.result.scores import Scores

PANELS = {"dice": "Dice", "hausdorff95": "Hausdorff distance, 95 % (mm)"}
COLORS = ("#3c5fa8", "#e8893f", "#2ca02c")


def box_plots(path: Path, sides: Mapping[str, Sequence[Mapping[str, Scores]]]) -> None:
    """Draw one panel per score, one box per structure and method, patients as points."""
    names = list(dict.fromkeys(name for side in sides.values() for scores in side for name in scores))
    figure = Figure(figsize=(1.5 + 1.0 * len(names), 6.5), layout="constrained")
    for panel, (key, title) in zip(figure.subplots(len(PANELS), 1), PANELS.items()):
        for number, (side, scores) in enumerate(sides.items()):
            at = np.arange(len(names)) + 0.7 / len(sides) * (number - (len(sides) - 1) / 2)
            values = [np.array([getattr(s[name], key) for s in scores if name in s]) for name in names]
            finite = [v[np.isfinite(v)] for v in values]  # one mask empty: no distance
            boxes = panel.boxplot(
                finite, positions=at, widths=0.56 / len(sides), showfliers=False, patch_artist=True
            )
            for box in boxes["boxes"]:
                box.set(facecolor=COLORS[number], alpha=0.35)
            for x, v in zip(at, finite):
                panel.plot(np.full(len(v), x), v, ".", color=COLORS[number])
            panel.plot([], [], "s", color=COLORS[number], label=verbatim(side))
        panel.set_xticks(range(len(names)), [verbatim(name) for name in names], rotation=30, ha="right")
        panel.set_ylabel(title)
    if len(sides) > 1:
        figure.axes[0].legend()
    figure.axes[0].set_ylim(0, 1)
    figure.savefig(path, dpi=110)
