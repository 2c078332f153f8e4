"""The whole of `tumoar segment`, stage by stage, beside the peer's `run_samseg` on the same images.

    python benchmarks/run.py [--quick] [--peer RUN_SAMSEG] [--threads N] [--folder DIR]

A whole head with tumor is drawn from the model and scanned as T1c, FLAIR, T2 and T1 at 1 mm; the same head is
scanned with its skull stripped. Every run is the command as a user starts it: 200 + 50 sweeps, report
included, compiled kernels in their cache (`cold`: none). `--fast` is compared by the Dice of its tumor with
the drawn truth. Short runs of 20 + 10 sweeps show what grows with threads, contrasts and voxels. The
peer gets the same images and threads; it knows no tumor, and is stopped after 15 times what our own run took:
its row is then what it took at least. `load` is the machine's load when a run began, in which the run before
still counts. `help_s` is the best of five of `tumoar --help`.

Prints, as its last line, one JSON object; the full run writes research/results/run.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from crbm import peak_gflops
from matplotlib.figure import Figure
from timing import best

from tumoar.api import load_result
from tumoar.geometry.resample import resample
from tumoar.io.nifti import read_nifti
from tumoar.result.scores import dice

PROJECT = Path(__file__).resolve().parents[1]
CONTRASTS = ("T1c", "FLAIR", "T2", "T1")
SHORT = ("--burn-in", "20", "--samples", "10")
PATIENCE = 15
"""Times our own time, after which the peer is stopped."""
STAGES = ("read", "place", "fit", "sample", "write")
BEGINS = {"placing": "place", "fitting": "fit", "sampling": "sample", "writing": "write"}
"""The first word of a line of progress, and the stage it belongs to; before all of them, images are read."""


def measured(
    command: list[str], log: Path, env: dict[str, str] | None = None, most: float = np.inf
) -> dict[str, float]:
    """Wall and processor seconds of a command and the most memory it held; its output goes to `log`.

    It is stopped after `most` seconds.
    """
    load = os.getloadavg()[0]
    start = time.perf_counter()
    with log.open("w") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        while (ended := os.wait4(child.pid, os.WNOHANG))[0] == 0:
            time.sleep(0.05)
            if time.perf_counter() - start > most:
                child.kill()
        _, status, used = ended
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode and time.perf_counter() - start < most:
        raise SystemExit(f"{command[0]} failed: see {log}")
    return {
        "seconds": time.perf_counter() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_gb": used.ru_maxrss / 1e6,
        "load": load,
    }


def stages(log: Path, total: float) -> dict[str, float]:
    """Seconds of every stage from the times in front of the lines of progress; starting Python is reading."""
    begins: dict[str, float] = {}
    last = 0.0
    for line in log.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\s*([\d.]+) s\s+(\w+)", line):
            last = float(found[1])
            begins.setdefault(BEGINS.get(found[2], "read"), last)
    begins["read"] = last - total  # the clock of the log starts after the imports
    ends = [begins[name] for name in STAGES[1:]] + [last]
    return {name: end - begins[name] for name, end in zip(STAGES, ends)}


def segment(
    images: Path,
    out: Path,
    threads: int,
    *flags: str,
    names: tuple[str, ...] = CONTRASTS,
    cache: Path | None = None,
) -> dict[str, float]:
    """One run of the command; with a `cache` of its own that is empty, kernels are compiled anew."""
    shutil.rmtree(out, ignore_errors=True)
    given = [part for name in names for part in (f"--{name.lower()}", str(images / f"{name}.nii.gz"))]
    options = ["-o", str(out), "--threads", str(threads), *flags]
    command = [sys.executable, "-m", "tumoar", "segment", *given, *options]
    log = out.with_suffix(".log")
    figures = measured(command, log, {"NUMBA_CACHE_DIR": str(cache)} if cache else None)
    return {**figures, **stages(log, figures["seconds"])}


def scored(images: Path, out: Path) -> dict[str, float]:
    """Dice of core and whole tumor with the truth of a drawn patient."""
    truth, found = read_nifti(images / "truth_tumor.nii.gz"), load_result(out)
    grid = read_nifti(out / "segmentation.nii.gz").grid
    core = found.mask("GTV")
    sides = {"core": (core, 2), "whole": (core | found.mask("Edema"), 1)}
    return {
        name: dice(mask, resample(truth.data >= least, truth.grid, grid) > 0.5)
        for name, (mask, least) in sides.items()
    }


def peer(run_samseg: str, images: Path, folder: Path, threads: int, most: float) -> dict[str, float]:
    """`run_samseg` on the same images, with its defaults."""
    given = [str(images / f"{name}.nii.gz") for name in CONTRASTS]
    command = [run_samseg, "-i", *given, "-o", str(folder / "peer"), "--threads", str(threads)]
    return measured(command, folder / "peer.log", {"OMP_NUM_THREADS": str(threads)}, most)


def runs(folder: Path, threads: int, run_samseg: str | None, quick: bool) -> dict[str, dict[str, float]]:
    """All rows of the table, by name."""
    heads = {"stripped": ("--skull-stripped",)} | ({} if quick else {"head": ()})
    for name, flags in heads.items():
        if not (folder / name / "truth_tumor.nii.gz").exists():
            wanted = [part for contrast in CONTRASTS for part in ("--contrast", contrast)]
            command = ["simulate", *wanted, "--seed", "12", "-o", str(folder / name), *flags]
            subprocess.run([sys.executable, "-m", "tumoar", *command], check=True)
    head, stripped = folder / "head", folder / "stripped"
    rows: dict[str, dict[str, float]] = {}

    def add(name: str, images: Path, *flags: str, of: int = threads, scores: bool = False, **more) -> None:
        out = folder / re.sub(r"\W+", "_", name)
        rows[name] = segment(images, out, of, *flags, **more)
        if scores:
            rows[name] |= scored(images, out)
        print(name, {k: round(v, 2) for k, v in rows[name].items()}, flush=True)

    if quick:
        add("quick look, skull-stripped", stripped, "--burn-in", "2", "--samples", "2", scores=True)
        return rows
    add("short", head, *SHORT)  # the first fills the cache
    add("whole head", head, scores=True)
    add("whole head, --fast", head, "--fast", scores=True)
    add("skull-stripped", stripped, scores=True)
    add("skull-stripped, --fast", stripped, "--fast", scores=True)
    add("short", head, *SHORT)
    add("short, 1 thread", head, *SHORT, of=1)
    with tempfile.TemporaryDirectory() as cache:
        add("short, cold", head, *SHORT, cache=Path(cache))
    add("short, skull-stripped", stripped, *SHORT)
    for count in (1, 2, 3):
        add(f"short, {count} of 4 contrasts", head, *SHORT, names=CONTRASTS[:count])
    if run_samseg:
        most = PATIENCE * rows["whole head"]["seconds"]
        rows["run_samseg"] = peer(run_samseg, head, folder, threads, most)
    return rows


def page(rows: dict[str, dict[str, float]], figures: dict[str, float]) -> str:
    about = (__doc__ or "").split("\n\n")
    lines = ["# The whole of `segment`", "", about[2], ""]
    lines += [f"Drawn with seed 12, {figures['threads']:.0f} threads on {os.cpu_count()} cores.", ""]
    columns = ("seconds", *STAGES, "cpu_s", "peak_gb", "core", "whole", "load")
    lines += ["| run | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    for name, row in rows.items():
        digits = {"peak_gb": 2, "core": 3, "whole": 3}
        cells = [f"{row[c]:.{digits.get(c, 1)}f}" if c in row else "" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| figure | value |", "|---|---|"]
    lines += [f"| {name} | {value:.3g} |" for name, value in figures.items()]
    return "\n".join([*lines, "", "![Stages](../figures/run.png)", ""])


def drawn(rows: dict[str, dict[str, float]], path: Path) -> None:
    """One bar per run, in stages; the peer's in one piece."""
    figure = Figure((8, 0.45 * len(rows) + 1), layout="constrained")
    axes = figure.add_subplot()
    names = list(rows)[::-1]
    left = np.zeros(len(names))
    for stage in STAGES:
        width = np.array([rows[n].get(stage, 0.0) for n in names])
        axes.barh(names, width, left=left, label=stage)
        left += width
    rest = np.array([rows[n]["seconds"] for n in names]) - left
    axes.barh(names, np.where(left > 0, 0, rest), left=left, color="gray", label="peer")
    axes.set_xlabel("seconds")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def summary(rows: dict[str, dict[str, float]], threads: int) -> dict[str, float]:
    """The figures that are asked for."""
    out = {"threads": float(threads)}
    if "whole head" not in rows:
        return out
    whole, fast = rows["whole head"], rows["whole head, --fast"]
    out["whole_head_s"] = whole["seconds"]
    out["peak_gb"] = max(row["peak_gb"] for name, row in rows.items() if name != "run_samseg")
    out["skull_stripped_s"] = rows["skull-stripped"]["seconds"]
    out["fast_saves_s"] = whole["seconds"] - fast["seconds"]
    out |= {f"fast_loses_{k}": whole[k] - fast[k] for k in ("core", "whole")}
    out["two_threads_gain"] = rows["short, 1 thread"]["seconds"] / rows["short"]["seconds"]
    out["compiling_s"] = rows["short, cold"]["seconds"] - rows["short"]["seconds"]
    out["sweep_s"] = (whole["sample"] - rows["short"]["sample"]) / (250 - 30)
    out["core_seconds_per_patient"] = whole["cpu_s"]
    out["peak_gflops_of_one_core"] = peak_gflops()
    out["help_s"] = best(
        lambda: subprocess.run([sys.executable, "-m", "tumoar", "--help"], stdout=subprocess.DEVNULL), 5
    )
    if "run_samseg" in rows:
        out["peer_ratio"] = rows["run_samseg"]["seconds"] / whole["seconds"]
        out["peer_memory_ratio"] = rows["run_samseg"]["peak_gb"] / whole["peak_gb"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short run, and no page")
    parser.add_argument("--peer", help="run_samseg of an environment that has the samseg package")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keep images and results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = runs(folder, options.threads, options.peer, options.quick)
    figures = summary(rows, options.threads)
    if not options.quick:
        drawn(rows, PROJECT / "research" / "figures" / "run.png")
        (PROJECT / "research" / "results" / "run.md").write_text(page(rows, figures), encoding="utf-8")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()} | {"rows": rows}))


if __name__ == "__main__":
    main()
