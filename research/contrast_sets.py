"""Every set of the four contrasts that has T1c or FLAIR, on development patients.

python research/contrast_sets.py run [--patients NAMES] [--workers 2]
python research/contrast_sets.py report [--write PAGE]

Scores are those of research/patients.py, with 40 + 30 sweeps; the result of each set is in
build/patients/set-NAME. Without T1c nothing tells core from edema: only the whole tumor is scored.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy as np
from patients import RESULTS, Row, interval, patients, run, scores

CONTRASTS = ("t1c", "flair", "t2", "t1")
SETS = [s for n in (4, 3, 2, 1) for s in combinations(CONTRASTS, n) if {"t1c", "flair"} & set(s)]
ALL = SETS[0]
PAGE = """\
# Contrast sets

Written by `python research/contrast_sets.py run` and `report --write PAGE`: `tumoar segment --fast`
(40 + 30 sweeps) with every set of T1c, FLAIR, T2 and T1 that has T1c or FLAIR, on the development patients.
Core is scored where it enhances and the set has T1c. Differences are to all four contrasts in the same
patients, with 95 % bootstrap intervals over patients; `worst` is the lowest Dice.
"""


def name_of(contrasts: tuple[str, ...]) -> str:
    return "set-" + "-".join(contrasts)


def cell(rows: dict[str, Row], whole: dict[str, Row], figure: str, names: list[str]) -> list[str]:
    """Mean, worst, and difference to all four contrasts."""
    if not names:
        return ["", "", ""]
    values = np.array([float(rows[n][figure]) for n in names])
    mean, low, high = interval(values - [float(whole[n][figure]) for n in names])
    return [f"{values.mean():.3f}", f"{values.min():.2f}", f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"]


def table() -> list[str]:
    whole = scores(name_of(ALL))
    lines = ["| contrasts | patients | whole | worst | difference | core | worst | difference | far, cm³ |"]
    lines.append("|" + "---|" * 9)
    for contrasts in SETS:
        rows = scores(name_of(contrasts))
        both = [n for n in rows if n in whole]
        if not both:
            continue
        enhancing = [n for n in both if rows[n]["group"] != "not enhancing" and "t1c" in contrasts]
        far = np.mean([float(rows[n]["far_cm3"]) for n in both])
        cells = ["+".join(c.upper().replace("T1C", "T1c") for c in contrasts), str(len(both))]
        cells += cell(rows, whole, "whole_dice", both) + cell(rows, whole, "core_dice", enhancing)
        lines.append("| " + " | ".join([*cells, f"{far:.2f}"]) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("run", "report"))
    parser.add_argument("--patients", help="only these, separated by commas")
    parser.add_argument("--workers", type=int, default=2, help="patients at a time, one thread each")
    parser.add_argument("--write", type=Path, help="also write the table to this page")
    options = parser.parse_args()
    if options.verb == "run":
        chosen = [p for p in patients() if not options.patients or p.name in options.patients.split(",")]
        with ThreadPoolExecutor(options.workers) as pool:
            for contrasts in SETS:
                for patient in chosen:
                    out = RESULTS / name_of(contrasts) / patient.name
                    pool.submit(run, patient, out, contrasts, ["--fast", "--threads", "1"])
    lines = table()
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join([PAGE, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
