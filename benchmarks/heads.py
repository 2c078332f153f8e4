"""`tumoar segment` on heads that differ, one after the other: seconds of each stage, worst and median.

    python benchmarks/heads.py [--quick] [--threads N] [--folder DIR] [--only NAME,…]

Heads of patients, with their skulls and without, and simulated by the simulator that shares nothing with the
model. Every run is the command as a user starts it, with all four contrasts, 200 + 50 sweeps, report included
and compiled kernels in their cache. `load` is the machine's load when a run began.

Prints, as its last line, one JSON object; the full run writes research/results/heads.md. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from run import SHORT, STAGES, measured, stages

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
PAGE = PROJECT / "research" / "results" / "heads.md"
CONTRASTS = ("t1c", "flair", "t2", "t1")
PATIENTS = {
    "BraTS2021_00006": "skull-stripped",
    "BraTS-GLI-00335-000": "skull-stripped",
    "TCGA-02-0054": "whole head, slices of 6.5 mm",
}
SIMULATED = {"10": "whole head, 1 mm, simulated", "20": "whole head, 1 mm, simulated"}
COLUMNS = ("seconds", *STAGES, "cpu_s", "peak_gb", "load")


def images_of(name: str, folder: Path) -> list[str]:
    """Options that name the images of a head, which is simulated if need be."""
    if name in SIMULATED:
        place = folder / f"head_{name}"
        if not place.exists():
            command = [sys.executable, "-m", "tumoar", "simulate", "--independent", "-o", str(place)]
            command += ["--labels", str(DATA / "heads" / f"head_{name}.nii.gz")]
            for contrast in ("T1c", "FLAIR", "T2", "T1"):
                command += ["--contrast", contrast]
            measured(command, folder / f"simulate_{name}.log")
        files = {c: place / f"{n}.nii.gz" for c, n in zip(CONTRASTS, ("T1c", "FLAIR", "T2", "T1"))}
    else:
        place = next(
            p / name for p in (DATA / "patients", DATA / "patients-automatic") if (p / name).exists()
        )
        files = {c: place / f"{c}.nii.gz" for c in CONTRASTS}
    return [part for contrast, path in files.items() for part in (f"--{contrast}", str(path))]


def segment(name: str, folder: Path, threads: int, flags: tuple[str, ...]) -> dict[str, float]:
    """One run, with the seconds of its stages."""
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "tumoar", "segment", *images_of(name, folder)]
    command += ["-o", str(folder / name), "--threads", str(threads), "-v", "--overwrite", *flags]
    row = measured(command, log)
    return row | stages(log, row["seconds"])


def page(rows: dict[str, dict[str, float]], threads: int, sweeps: str) -> str:
    """The page: a row for each head, then median and worst."""
    lines = ["# Seconds of several heads", "", *__doc__.strip().splitlines()[4:7], ""]
    lines += [f"{threads} threads on {os.cpu_count()} cores, {sweeps}.", ""]
    lines += ["| head | | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 2)]
    kinds = PATIENTS | SIMULATED
    for name, row in rows.items():
        lines.append(f"| {name} | {kinds[name]} | " + " | ".join(f"{row[c]:.1f}" for c in COLUMNS) + " |")
    for what, summary in (("median", np.median), ("most", np.max)):
        cells = " | ".join(f"{summary([row[c] for row in rows.values()]):.1f}" for c in COLUMNS)
        lines.append(f"| **{what}** | | {cells} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one head, few sweeps")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keep images, results and logs here")
    parser.add_argument("--only", help="only these heads, separated by commas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        names = options.only.split(",") if options.only else [*PATIENTS, *SIMULATED]
        flags, sweeps = (SHORT, "20 + 10 sweeps") if options.quick else ((), "200 + 50 sweeps")
        for name in SIMULATED:
            if name in names and not options.quick:
                images_of(name, folder)
        rows = {
            name: segment(name, folder, options.threads, flags)
            for name in (names[:1] if options.quick else names)
        }
    text = page(rows, options.threads, sweeps)
    if options.quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
