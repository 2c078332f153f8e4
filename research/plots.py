"""Draw the plots of docs/accuracy.md, docs/uncertainty.md and docs/speed.md from the pages in results/.

    python research/plots.py

Each PNG names the model that its page says the figures are of, by SHA-256 (`tests/test_docs.py`). Change that
line of the page when you have measured again, not before.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parents[1]
PAGES, IMAGES = ROOT / "research" / "results", ROOT / "docs" / "images"
INK, CORE, WHOLE, GRAY = "#1d2127", "#d6006e", "#b08900", "#8a919c"
GROUPS = (("clearly enhancing", 15), ("patchily enhancing", 3), ("not enhancing", 3))


def model_of(page: str) -> str:
    """Files of the model with digests, as a page of docs/ names them."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    found = dict(re.findall(r"`(\w+\.(?:npz|json))` ([0-9a-f]{12})\b", text))
    return ", ".join(f"{name} {digest}" for name, digest in found.items())


def cells(page: str) -> list[list[str]]:
    """All rows of the tables of a page of results."""
    text = (PAGES / f"{page}.md").read_text("utf-8")
    return [
        [c.strip(" *") for c in line.strip("| ").split(" | ")] for line in text.splitlines() if "|" in line
    ]


def stamp(path: Path, model: str) -> None:
    """Write into a PNG which model it is of; its pixels stay as they are."""
    with Image.open(path) as image:
        image.load()
        about = PngInfo()
        about.add_text("Model", model)
        image.save(path, pnginfo=about, optimize=True)


def accuracy() -> Figure:
    """Dice and Hausdorff distance of every development patient, by group."""
    rows = [row for row in cells("patients") if row[0].startswith("BraTS")]
    figure = Figure(figsize=(8.2, 3.6), layout="constrained")
    rng = np.random.default_rng(0)
    for panel, (title, columns) in zip(
        figure.subplots(1, 2), (("Dice", (1, 4)), ("95 % Hausdorff distance, mm", (2, 5)))
    ):
        for side, (column, color, name) in enumerate(zip(columns, (CORE, WHOLE), ("core", "whole tumor"))):
            start = 0
            for at, (_, count) in enumerate(GROUPS):
                values = np.array([float(row[column]) for row in rows[start : start + count]])
                x = at + 0.36 * (side - 0.5)
                marker = "os"[side]
                panel.plot(
                    x + rng.uniform(-0.07, 0.07, count),
                    values,
                    marker,
                    color=color,
                    ms=5,
                    alpha=0.75,
                    mec="white",
                    mew=0.5,
                )
                panel.plot([x - 0.13, x + 0.13], [np.median(values)] * 2, color=INK, lw=1.8)
                start += count
            panel.plot([], [], "os"[side], color=color, label=name)
        panel.set_xticks(range(3), [f"{name}\n({count})" for name, count in GROUPS])
        panel.set_ylabel(title)
    figure.axes[0].set_ylim(0, 1)
    figure.axes[0].legend(loc="lower left", frameon=False)
    return figure


def reliability() -> Figure:
    """Fraction of voxels in the reference, by vote fraction and by predicted probability."""
    text = (PAGES / "intervals.md").read_text("utf-8")
    figure = Figure(figsize=(8.2, 3.9), layout="constrained")
    for panel, name in zip(figure.subplots(1, 2), ("Core", "Whole")):
        part = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        found = re.findall(r"^\| 0\.\d to \S+ \| \d+ \| ([\d.]+) \| \d+ \| ([\d.]+) \|$", part, re.M)
        values = np.array(found, float)
        middles = np.arange(len(values)) / 10 + 0.05
        panel.plot([0, 1], [0, 1], color=GRAY, lw=1)
        panel.plot(middles, values[:, 0], "s--", color=GRAY, label="votes of the samples")
        panel.plot(middles, values[:, 1], "o-", color=CORE if name == "Core" else WHOLE, label="predicted")
        panel.set(xlim=(0, 1), ylim=(0, 1), title=name.replace("Whole", "Whole tumor"), xlabel="probability")
        panel.set_aspect("equal")
        panel.legend(loc="upper left", frameon=False)
    figure.axes[0].set_ylabel("fraction that the reference contains")
    return figure


def intervals() -> Figure:
    """The 90 % and 50 % intervals of every patient, relative to the reference."""
    text = (PAGES / "intervals.md").read_text("utf-8")
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    number = r"([\d.]+)"
    row = (
        rf"^\| (BraTS\S+) \| {number} \| {number} to {number}\D*? \| {number} to {number}\D*? \| {number} \|$"
    )
    for panel, name, color in zip(figure.subplots(1, 2), ("Core", "Whole"), (CORE, WHOLE)):
        part = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        found = sorted(np.array(re.findall(row, part, re.M))[:, 1:].astype(float), key=lambda v: v[-1])
        for y, (outlined, low50, high50, low90, high90, reference) in enumerate(found):
            panel.plot([low90 / reference, high90 / reference], [y, y], color=color, lw=1.2)
            panel.plot([low50 / reference, high50 / reference], [y, y], color=color, lw=4.5, alpha=0.6)
            panel.plot(outlined / reference, y, "|", color=INK, ms=9)
        panel.axvline(1, color=GRAY, lw=1)
        panel.set_yticks(range(len(found)), [f"{v[-1]:.0f}" for v in found], fontsize=7)
        panel.set(xlabel="volume relative to the reference", title=name.replace("Whole", "Whole tumor"))
    figure.axes[0].set_ylabel("reference volume of the patient, cm³")
    return figure


def stages() -> Figure:
    """Seconds of every stage of `segment` on a whole head and a stripped one."""
    wanted = ("whole head", "whole head, --fast", "skull-stripped", "skull-stripped, --fast")
    rows = {row[0]: [float(v) for v in row[2:7]] for row in cells("run") if row[0] in wanted}
    figure = Figure(figsize=(8.2, 2.4), layout="constrained")
    panel = figure.subplots()
    left = np.zeros(len(wanted))
    colors = ("#c9ced6", "#8fa6c9", "#3c5fa8", CORE, "#e5b93c")
    for stage, (name, color) in enumerate(zip(("read", "place", "fit", "sample", "write"), colors)):
        values = np.array([rows[key][stage] for key in wanted])
        panel.barh(range(len(wanted)), values, left=left, color=color, label=name, edgecolor="white")
        left += values
    panel.set_yticks(range(len(wanted)), wanted)
    panel.invert_yaxis()
    panel.set_xlabel("seconds on two threads")
    panel.legend(ncol=5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


PLOTS = {
    "accuracy": (accuracy, "accuracy"),
    "reliability": (reliability, "uncertainty"),
    "intervals": (intervals, "uncertainty"),
    "stages": (stages, ""),  # times of earlier shape priors, as the page says
}


def main() -> None:
    """Draw all plots."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    for name, (draw, page) in PLOTS.items():
        path = IMAGES / f"{name}.png"
        draw().savefig(path, dpi=130)
        stamp(path, model_of(page) if page else "none")


if __name__ == "__main__":
    main()
