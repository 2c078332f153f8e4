"""The paper's training of the shape priors: what a step of 0.1 multiplies, and how its training goes.

python research/crbm_paper.py [--maps zy] [--steps 20] [--checkpoints FOLDER] [--write PAGE]

The paper prints the step, and not the scale of the gradient. Each candidate is followed for some steps on a
few small training shapes in maps with the share of tumor of all of them. `--checkpoints` adds the traces that
`tumoar train shape --rule cd --checkpoints FOLDER` has left there. Prints the page, or writes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from shape_cases import DATA, MODEL, load_models

from tumoar.cli.train_shape import TRACE, read_shapes
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import REACH, M
from tumoar.train.contrastive import ContrastiveTraining, initialize, sweep
from tumoar.train.shape import Difference, centered_gradient, uncenter
from tumoar.train.shape_data import Shape
from tumoar.train.shape_start import TIED, Parameters

SEED = 2019
TRAINED, UNSEEN = 12, 3  # shapes
SMALLEST = 5_000  # mm³
SHOWN = (1, 2, 3, 4, 5, 10, 20)
MILESTONES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 300, 400, 500, 700, *range(1000, 10_000, 1000), 9600)


class Candidate(NamedTuple):
    """A scale of the gradient: what it is divided by, and whether tied taps get the mean of their block."""

    name: str
    is_map: bool
    is_mean: bool


CANDIDATES = (
    Candidate("mean over the voxels of the maps, sum in a tied block (used)", True, False),
    Candidate("mean over the voxels of the maps, mean in a tied block", True, True),
    Candidate("mean over the voxels of boxes around tumor, sum in a tied block", False, False),
    Candidate("mean over the voxels of boxes around tumor, mean in a tied block", False, True),
)


class Row(NamedTuple):
    """Figures after a step."""

    step: int
    error: float
    volume: float
    a: float
    background: float  # a and the mean input from the hidden units
    norm: float
    rise: float  # free energy per voxel of unseen shapes above the empty map


def follow(candidate: Candidate, shapes: list[Shape], unseen: list[Shape], steps: int) -> Iterator[Row]:
    """The paper's rule with this scale."""
    config = ContrastiveTraining()
    state, rng = initialize(shapes, config, SEED), np.random.default_rng(SEED)
    (w, b, a), mu, lam = state.parameters, state.mu, state.lam
    keep = config.offset_memory
    for step in range(1, steps + 1):
        chosen = [shapes[k] for k in rng.choice(len(shapes), config.batch, replace=False)]
        sums, places = sweep(chosen, Parameters(w, b, a), lam, config, rng)
        boxes = sum(int(np.prod(np.array(s.v.shape) + 2 * REACH)) for s in chosen)
        rate = config.step / (places if candidate.is_map else boxes)
        g = centered_gradient(Difference(sums.wh, sums.h, sums.v), mu, np.zeros(M))
        own = rate / TIED if candidate.is_mean else rate
        move = uncenter(Parameters(own * g.w, rate * g.b, rate * g.a), mu, lam)
        w, b, a = w + move.w, b + move.b, a + float(move.a)
        mu = keep * mu + (1 - keep) * sums.mean_v / places
        lam = keep * lam + (1 - keep) * sums.mean_h / places
        norm = float(np.sqrt((w**2).sum((1, 2, 3))).max())
        if norm > config.largest_norm:
            return
        rise = np.nan
        if step in SHOWN:
            model = CRBM(w.astype(np.float32), b.astype(np.float32), a)
            rise = float(np.mean([model.free_energy_rise(s.v) for s in unseen]))
        background = a + TIED * float((lam * w.sum((1, 2, 3))).sum())
        yield Row(
            step,
            sums.unequal / places,
            (sums.mean_v - sums.v / 2) / max(sums.data, 1.0),
            a,
            background,
            norm,
            rise,
        )


def small_problem(name: str) -> tuple[list[Shape], list[Shape]]:
    """Small shapes of some training and validation patients of the model in the package."""
    card = load_models(MODEL)[1][name]

    def small(names: list[str], n: int) -> list[Shape]:
        paths = [DATA / "tumors" / "automatic" / f"{x}.nii.gz" for x in names[: 3 * n]]
        large = (s for s in read_shapes(paths, [2, 3])[name] if s.volume >= SMALLEST)
        return sorted(large, key=lambda s: int(np.prod(s.v.shape)))[:n]

    trained, unseen = small(card["subjects"], TRAINED), small(card["validation"], UNSEEN)
    mean = card["mean_mm3"]["core"] + (card["mean_mm3"]["edema"] if name == "z" else 0.0)
    own = sum(s.volume for s in trained) / len(trained)
    return [replace(s, places=round(s.places * own / mean)) for s in trained], unseen


def candidates(maps: str, steps: int) -> list[str]:
    """Tables of all candidates."""
    lines = [
        f"{TRAINED} small training shapes (at least {SMALLEST // 1000} cm³) in maps with the share of tumor",
        f"of all, mini-batches of 10, steps of 0.1, seed {SEED}. “Background” is the visible bias and the",
        "mean input from the hidden units, the log-odds of tumor where there is none; “volume” is that of",
        "the reconstructions relative to the data; “rise” is the free energy per voxel of",
        f"{UNSEEN} validation shapes above the empty map.",
        "",
    ]
    for name in maps:
        shapes, unseen = small_problem(name)
        for candidate in CANDIDATES:
            rows = list(follow(candidate, shapes, unseen, steps))
            lines += [
                f"### Map {name}, {candidate.name}", "",
                "| step | unequal voxels, % | volume | visible bias | background | largest norm | rise |",
                "|---|---|---|---|---|---|---|",
                *(f"| {r.step} | {100 * r.error:.2f} | {r.volume:.2f} | {r.a:.2f} | {r.background:.2f} | "
                  f"{r.norm:.3f} | {r.rise:.3f} |" for r in rows if r.step in SHOWN),
                "",
            ]  # fmt: skip
            if len(rows) < steps:
                lines += [f"Stopped by the largest norm after {len(rows)} steps.", ""]
    return lines


def trainings(folder: Path) -> list[str]:
    """Tables of the traces in a checkpoint folder."""
    lines = []
    for path in sorted(folder.glob("shape_?.tsv")):
        head, *rows = path.read_text("utf-8").splitlines()
        if head != TRACE:
            raise SystemExit(f"{path} is not a trace of tumoar train shape")
        table = [row.split("\t") for row in rows]
        done = int(table[-1][0])
        lines += [
            f"## Map {path.stem[-1]}, {done} of {ContrastiveTraining().steps} steps", "",
            "Gap: free energy in nats per voxel of validation shapes above training shapes.", "",
            "| step | unequal voxels, % | volume | largest norm | gap | visible bias | hidden bias |",
            "|---|---|---|---|---|---|---|",
            *(f"| {s} | {100 * float(e):.3f} | {float(v):.2f} | {float(n):.3f} | {float(g):.3f} | "
              f"{float(a):.2f} | {float(b):.3f} |"
              for s, e, v, n, g, a, b in table if int(s) in (*MILESTONES, done)),
            "",
        ]  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", default="zy")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = ["# The paper's training of the shape priors", "", "## What a step multiplies", ""]
    lines += candidates(options.maps, options.steps)
    if options.checkpoints:
        lines += trainings(options.checkpoints)
    if options.write:
        options.write.write_text("\n".join(lines), "utf-8")
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
