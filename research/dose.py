"""Are dose-volume histograms right, on small organs above all?

Two answers. Spheres, tubes and cones of 0.05 to 5 cm³ in a dose that rises by 1 Gy per mm through 54 Gy, as
masks of shares at five voxel sizes and random places: D5, D50 and D95 against the formula. Coarser voxels
stand beside, with what a mask leaves open: it says how much of a voxel is inside, not where. And every
structure of a clinical plan on a head phantom against the histograms of the planning system that made it.
That drawn contours end at the outermost plane, and are interpolated between planes, was decided on this
plan: with half a slice more at both ends the volumes of small organs were up to 40 % above the planning
system's.

    python research/dose.py [--quick]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from pathlib import Path

import numpy as np

from tumoar.geometry.contours import cut_outline
from tumoar.geometry.pieces import cut_mask
from tumoar.io.dose import read_dose
from tumoar.io.rtstruct import read_rtstruct
from tumoar.radiotherapy.dvh import dvh
from tumoar.simulate.bodies import linear_dose, mask_of, possible, shapes

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
RESULT = PROJECT / "research" / "results" / "dose.md"

PERCENTS = (5, 50, 95)
VOLUMES = (0.05, 0.1, 0.5, 5.0)
SPACINGS = [(s, s, s) for s in (0.5, 0.75, 1.0, 1.25, 1.5)]
COARSER = [(2.0, 2.0, 2.0), (1.0, 1.0, 3.0), (3.0, 3.0, 3.0)]


def analytic(spacing: tuple[float, float, float], cm3: float, repeats: int) -> tuple[float, float, float]:
    """Largest error in Gy, in units of the larger of 0.5 % and 0.1 Gy, and half of what masks leave open."""
    rng = np.random.default_rng(0)
    gray, relative, half = [], [], []
    for shape in shapes(cm3):
        dose = linear_dose(shape.axis)
        true = np.array([shape.D(p) for p in PERCENTS])
        for _ in range(repeats):
            mask = mask_of(shape, spacing, rng)
            found = dvh(cut_mask(mask), dose)
            half += [np.ptp(possible(mask, shape.axis, p)) / 2 for p in PERCENTS]
            error = np.abs([found.D(p) for p in PERCENTS] - true)
            gray.append(error.max())
            relative.append((error / np.maximum(0.005 * true, 0.1)).max())
    return float(max(gray)), float(max(relative)), float(max(half))


def plan(quick: bool) -> list[dict[str, float | str]]:
    """Every structure of the plan: our figures and what the planning system's differ by."""
    folder = DATA / "radiotherapy" / "eclipse-ent"
    if not folder.is_dir():
        return []
    with (folder / "dvh_eclipse.csv").open() as file:
        table = list(csv.reader(file))
    columns = {h.split("_Dvh")[0].lower(): i for i, h in enumerate(table[0]) if "Dose (Gy)" in h}
    dose, rows = read_dose(folder / "dose.nrrd"), []
    for outline in read_rtstruct(folder / "rtstruct.dcm").outlines:
        column = columns["".join(c for c in outline.name if c.isalnum()).lower()]
        if quick and len(outline.polygons) > 13:
            continue
        gray, percent = np.array(
            [[float(v) for v in row[column : column + 2]] for row in table[1:] if row[column]]
        ).T
        found = dvh(cut_outline(outline), dose)
        row: dict[str, float | str] = {"name": outline.name, "cm3": found.volume, "mean": found.mean}
        row["reference_cm3"] = float(table[0][column + 1].split("% of ")[1].split()[0])
        row["mean_error"] = found.mean - np.trapezoid(percent, gray) / 100
        for p in PERCENTS:
            row[f"D{p}"] = found.D(p)
            row[f"D{p}_error"] = found.D(p) - np.interp(-p, -percent, gray)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and structures, nothing written")
    quick = parser.parse_args().quick
    start = time.perf_counter()
    volumes, spacings, repeats = (
        ((0.05, 0.5), SPACINGS[1:3], 1) if quick else (VOLUMES, SPACINGS + COARSER, 5)
    )
    errors = {(s, v): analytic(s, v, repeats) for s in spacings for v in volumes}
    rows = plan(quick)
    if not quick:
        RESULT.write_text(page(errors, rows, repeats), encoding="utf-8")
    barred = [e for (s, _), e in errors.items() if s in SPACINGS]
    figures: dict[str, float] = {
        "analytic_max_Gy": round(max(e[0] for e in barred), 3),
        "analytic_max_of_bar": round(max(e[1] for e in barred), 3),
        "structures": len(rows),
    }
    if rows:
        worst = [max(abs(float(r[f"D{p}_error"])) for r in rows) for p in PERCENTS]
        figures |= {f"plan_max_D{p}_Gy": round(w, 3) for p, w in zip(PERCENTS, worst)}
        figures["plan_max_mean_Gy"] = round(max(abs(float(r["mean_error"])) for r in rows), 3)
    print(json.dumps(figures | {"seconds": round(time.perf_counter() - start, 1)}))


def page(errors: dict, rows: list, repeats: int) -> str:
    lines = [
        "# Dose-volume histograms",
        "",
        (__doc__ or "").split("\n\n", 1)[1].split("\n\n    python")[0].replace("\n", " "),
        "",
        "## Against formulas",
        "",
        f"Largest error of D5, D50, D95 in Gy over five bodies at {repeats} random places each; the bar is",
        "the larger of 0.5 % of the dose and 0.1 Gy; figures above it are marked. In brackets half of the",
        "range that D can have among all bodies with the same mask: an error that no reading of the mask",
        "can exclude. Where it is above the bar, keeping the bar rests on bodies being smooth.",
        "",
        "| voxels, mm | " + " | ".join(f"{v} cm³" for v in VOLUMES) + " |",
        "|---|" + "---|" * len(VOLUMES),
    ]
    for spacing in SPACINGS + COARSER:
        found = [errors[spacing, v] for v in VOLUMES]
        cells = [f"{gray:.2f}{' !' if bars > 1 else ''} ({half:.2f})" for gray, bars, half in found]
        lines.append(f"| {'×'.join(f'{s:g}' for s in spacing)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "A body of 0.05 cm³ is 2 voxels of 3 mm, 6 of 2 mm: no mask of fractions determines where it",
        "lies within them. A mask of ones and zeros, as segmentations are, holds even less: its shares are",
        "known only to be above or below one half.",
        "",
        "## Against a planning system",
        "",
        "Ours, and in brackets ours minus the planning system's, Gy. Bars: 0.5 Gy, 0.2 Gy for the mean.",
        "",
        "| structure | cm³ (planning system) | D5 | D50 | D95 | mean |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        doses = [f"{r[k]:.2f} ({r[k + '_error']:+.2f})" for k in ("D5", "D50", "D95", "mean")]
        lines.append(f"| {r['name']} | {r['cm3']:.2f} ({r['reference_cm3']:g}) | " + " | ".join(doses) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
