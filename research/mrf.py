"""First-order MRF against the cRBMs, from the same start (section 4.1.3 of the paper).

python research/mrf.py search [--workers 2]     search of both β and both levels
python research/mrf.py compare [--workers 2]    the chosen MRF and the cRBMs on all patients
python research/mrf.py report [--write PAGE]    tables of what has been run

Algorithm 2 does not know the shape priors, so it runs once per patient. From its result Algorithm 1 samples
with every prior, with the same seed. `search` tries values of β_z, then of β_y, then levels, each with the
best of those before, on every third development patient, and ranks by the mean Dice of core and whole tumor.
All results are kept in build/mrf and continued.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from patients import PROJECT, interval, patients

from tumoar.api import Case
from tumoar.app import pipeline
from tumoar.geometry.image import Grid
from tumoar.io.models import default_model
from tumoar.io.nifti import read_nifti
from tumoar.result.scores import compare
from tumoar.vocabulary.config import Config

OUT = PROJECT / "build" / "mrf"
BETAS_Z = (0.3, 0.6, 1.0, 2.0)
BETAS_Y = (0.3, 0.6, 1.0)
LEVELS = ((0.0, -0.5), (-0.5, 0.0))
SWEEPS = {"burn_in": 30, "samples": 20}
CRBM = "crbm"
PAGE = """\
# First-order MRF and cRBM

Written by `python research/mrf.py search`, `compare` and `report --write PAGE`. Both priors from the same
result of Algorithm 2, with the same seed, 30 + 20 sweeps, on the development patients. The first table has
the values that were tried, on every third patient: mean Dice of core, where it enhances, and of the whole
tumor. The second has core where it enhances, and differences with 95 % bootstrap intervals over patients. The
MRF was tuned on some of these patients; no patient trained the cRBMs.
"""


class Kept(pipeline.Nowhere):
    """Keeps placement and fit of a patient on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, Any] | None:
        """Load what an earlier prior has left."""
        path = self.folder / f"{name}.npz"
        return dict(np.load(path)) if name in ("place", "fit") and path.exists() else None

    def save(self, name: str, arrays: dict[str, Any]) -> None:
        """Keep placement and fit, not samples."""
        if name in ("place", "fit"):
            self.folder.mkdir(parents=True, exist_ok=True)
            np.savez(self.folder / f"{name}.npz", **arrays)


def name_of(beta_z: float, beta_y: float, level_z: float, level_y: float) -> str:
    return f"mrf {beta_z:g} {beta_y:g} {level_z:g} {level_y:g}"


def settings(name: str) -> Config:
    config = Config.model_validate({"gibbs": SWEEPS})
    if name == CRBM:
        return config
    beta_z, beta_y, level_z, level_y = map(float, name.split()[1:])
    mrf = {"beta_z": beta_z, "beta_y": beta_y, "mrf_level_z": level_z, "mrf_level_y": level_y}
    return config.model_copy(update={"prior": "mrf", **mrf})


def reference_on(grid: Grid, patient: Path) -> np.ndarray:
    """The reference labels on the grid of a case: same axes, other corner."""
    image = read_nifti(patient / "tumor.nii.gz")
    move = image.grid.inverse @ grid.affine
    at = np.rint(move[:3, :3] @ np.indices(grid.shape).reshape(3, -1) + move[:3, 3:]).astype(int)
    inside = ((at >= 0) & (at < np.array(image.grid.shape)[:, None])).all(0)
    out = np.zeros(inside.size, np.uint8)
    out[inside] = np.asarray(image.data)[tuple(at[:, inside])]
    return out.reshape(grid.shape)


def run(patient: Path, names: tuple[str, ...]) -> None:
    """Sample a patient with every prior that has no score yet."""
    folder = OUT / patient.name
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "scores.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    todo = [name for name in names if name not in found]
    if not todo:
        return
    case = Case.from_files(**{c: patient / f"{c}.nii.gz" for c in ("t1c", "flair", "t2", "t1")})
    reference = reference_on(case.grid, patient)
    for name in todo:
        result = pipeline.segment(case, default_model(), settings(name), seed=0, keeper=Kept(folder))
        core, whole = result.votes.y, result.votes.z
        row: dict[str, Any] = {"group": "all"}
        for part, mask, true in (("core", core, reference > 1), ("whole", whole, reference > 0)):
            score = compare(mask, true, case.grid.spacing)
            row |= {f"{part}_dice": float(score.dice), f"{part}_hd95": score.hausdorff95}
        found[name] = row | {"seconds": result.seconds["sample"], "enhancing": int((reference == 3).sum())}
        kept.write_text(json.dumps(found), encoding="utf-8")
        print(patient.name, name, f"{row['core_dice']:.3f} {row['whole_dice']:.3f}", flush=True)


def scores(name: str) -> dict[str, dict[str, Any]]:
    rows = {p.name: OUT / p.name / "scores.json" for p in patients()}
    read = {n: json.loads(p.read_text(encoding="utf-8")) for n, p in rows.items() if p.exists()}
    return {n: row[name] for n, row in read.items() if name in row}


def merit(name: str) -> float:
    """Mean Dice of core, where it enhances, and of the whole tumor, over the patients of the search."""
    searched = {p.name for p in patients()[::3]}
    rows = [row for n, row in scores(name).items() if n in searched]
    values = [row["whole_dice"] for row in rows]
    values += [row["core_dice"] for row in rows if row["enhancing"] >= 1000]
    return float(np.mean(values)) if values else -np.inf


def steps(best: Callable[[], str]) -> Iterator[tuple[str, ...]]:
    """MRFs to try: values of β_z, of β_y, then levels, each with the best of what was tried before."""
    yield tuple(name_of(beta_z, 0.6, 0.0, 0.0) for beta_z in BETAS_Z)
    beta_z = float(best().split()[1])
    yield tuple(name_of(beta_z, beta_y, 0.0, 0.0) for beta_y in BETAS_Y)
    beta_y = float(best().split()[2])
    yield tuple(name_of(beta_z, beta_y, *level) for level in LEVELS)


def known() -> list[str]:
    """Names of all MRFs that have a score."""
    files = [OUT / p.name / "scores.json" for p in patients()]
    names = {n for f in files if f.exists() for n in json.loads(f.read_text(encoding="utf-8"))}
    return sorted(n for n in names if n != CRBM)


def spread(names: tuple[str, ...], some: list[Path], workers: int) -> None:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(run, patient, names) for patient in some]:
            done.result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("search", "compare", "report"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.verb == "search":
        for names in steps(lambda: max(known(), key=merit)):
            spread(names, patients()[::3], options.workers)
    searched = {name: merit(name) for name in known()}
    best = max(searched, key=lambda name: searched[name])
    if options.verb == "compare":
        spread((best, CRBM), patients(), options.workers)
    lines = ["| β_z | β_y | level_z | level_y | mean Dice of the search |", "|---|---|---|---|---|"]
    for name, value in searched.items():
        lines.append("| " + " | ".join(name.split()[1:]) + f" | {value:.3f} |")
    if options.verb != "search":
        lines += ["", *table(best)]
    print("\n".join(lines))
    if options.write:
        lines = [PAGE, *lines]
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(best: str) -> list[str]:
    """Both priors on all patients, and paired differences, cRBM minus MRF."""
    found = {name: scores(name) for name in (best, CRBM)}
    figures = ("core_dice", "core_hd95", "whole_dice", "whole_hd95")
    lines = ["| prior | patients | " + " | ".join(figures) + " |", "|" + "---|" * 6]
    both = [n for n in found[CRBM] if n in found[best]]
    enhancing = {n for n in both if found[CRBM][n]["enhancing"] >= 1000}
    differ = []
    for k in figures:
        names = [n for n in both if k[0] == "w" or n in enhancing]
        change = np.array([found[CRBM][n][k] - found[best][n][k] for n in names])
        differ.append((names, interval(change[np.isfinite(change)])))
    for name, rows in found.items():
        cells = [f"{np.mean([rows[n][k] for n in names]):.3f}" for k, (names, _) in zip(figures, differ)]
        lines.append(f"| {name} | {len(both)} | " + " | ".join(cells) + " |")
    cells = [f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" for _, (mean, low, high) in differ]
    return [*lines, "| cRBM minus MRF | | " + " | ".join(cells) + " |"]


if __name__ == "__main__":
    main()
