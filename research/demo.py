"""`tumoar demo` over several seeds: does the interval of each structure contain the true volume?

python research/demo.py [--seeds 10] [--workers 2] [--quick]

Every seed draws another patient from the model and segments it with default settings. Finished patients are
kept in build/demo. Writes research/results/demo.md and prints, as its last line, one JSON object. `--quick`
has one seed and few sweeps, and shows the page instead of writing it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "build" / "demo"
PAGE = PROJECT / "research" / "results" / "demo.md"
ABOUT = """\
Written by `python research/demo.py`. Each row is a structure of {count} patients drawn from the model by
`tumoar demo --seed`, from {first} to {last}, with default settings: mean Dice, the mean of outlined over true
volume, how many of the intervals contain the true volume, and their median width relative to the true volume.
Structures that a patient does not have do not count. The intervals were calibrated on other material:
development patients (tumor) and simulated heads (organs).
"""

Row = dict[str, str]


def run(seed: int, flags: Sequence[str], folder: Path) -> list[Row]:
    """Rows of truth.tsv of a seed; the demo is run unless its result is there."""
    out = folder / str(seed)
    if not (out / "truth.tsv").exists():
        command = [sys.executable, "-m", "tumoar", "demo", "--seed", str(seed), "--threads", "1", *flags]
        subprocess.run([*command, "-o", str(out)], check=False, stdout=subprocess.DEVNULL)
    with (out / "truth.tsv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if float(row["true_cm3"]) > 0]


def summarize(rows: Sequence[Row]) -> list[str]:
    """Cells of a line of the table: figures over the patients that have a structure."""
    true = np.array([float(row["true_cm3"]) for row in rows])
    found, low, high = (
        np.array([float(row[name]) for row in rows]) for name in ("cm3", "low_cm3", "high_cm3")
    )
    covered = sum(row["covered"] == "yes" for row in rows)
    dice = np.mean([float(row["dice"]) for row in rows])
    width = float(np.median((high - low) / true))
    return [f"{dice:.3f}", f"{np.mean(found / true):.2f}", f"{covered} of {len(rows)}", f"{width:.0%}"]


def page(by_seed: Sequence[Sequence[Row]], seeds: Sequence[int]) -> tuple[str, dict[str, float]]:
    """The page, and the mean number of structures per patient with and without their interval."""
    counts = [(sum(row["covered"] == "yes" for row in rows), len(rows)) for rows in by_seed]
    covered, there = np.mean(counts, 0)
    lines = ["# The demo", "", ABOUT.format(count=len(seeds), first=seeds[0], last=seeds[-1])]
    each = ", ".join(f"{c} of {n}" for c, n in counts)
    lines += [
        f"In the mean of the patients, {covered:.1f} of {there:.1f} intervals contain the truth ({each}).",
        "",
        "| structure | kind of interval | Dice | outlined / true | contain the truth | width |",
        "|" + "---|" * 6,
    ]
    every = [row for rows in by_seed for row in rows]
    for name in dict.fromkeys(row["name"] for row in every):
        own = [row for row in every if row["name"] == name]
        kinds = " / ".join(dict.fromkeys(row["interval"] for row in own))
        lines.append(f"| {name} | {kinds} | {' | '.join(summarize(own))} |")
    lines += ["", "Intervals that do not contain the truth:", ""]
    for seed, rows in zip(seeds, by_seed):
        for row in rows:
            if row["covered"] != "yes":
                interval = f"interval {row['low_cm3']} to {row['high_cm3']}"
                lines.append(f"- seed {seed}, {row['name']}: {row['true_cm3']} cm³, {interval}")
    return "\n".join([*lines, ""]), {"covered": float(covered), "structures": float(there)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="patients at a time, one thread each")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds = list(range(1 if options.quick else options.seeds))
    folder, flags = (RESULTS / "quick", ["--fast"]) if options.quick else (RESULTS, [])
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.workers) as pool:
        found = list(pool.map(lambda seed: run(seed, flags, folder), seeds))
    text, figures = page(found, seeds)
    if options.quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
