"""How fast a cohort goes: many small processes or few large ones, and how time grows with subjects.

Small simulated patients through `tumoar cohort`: two at a time with one thread each against one at a time
with two threads; then 4 and 16 of them. Subjects that do nothing show what the engine itself costs.
The time of real patients, with which a study is worked out, is that of research/results/patients.md.

    python benchmarks/cohort.py [--quick] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "research"), str(PROJECT / "tests")]

CORES, NODE_GB = 32, 128  # of the node that a study is worked out for
PATIENTS = 1000
CASE_GB = 4.0


def cohort(raw: Path, out: Path, flags: list[str], *options: str) -> tuple[float, list[dict]]:
    """Seconds that the command took, and the records of its subjects."""
    shutil.rmtree(out, ignore_errors=True)
    command = ["cohort", str(raw), str(out), "participant", "-q", *options, "--", *flags]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tumoar", *command], check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(path.read_text()) for path in sorted((out / "logs").glob("*.json"))]


def engine_cost(folder: Path, count: int) -> tuple[float, float]:
    """Seconds to start, and per subject that does nothing, two at a time."""
    from small_cohort import order, subjects

    from tumoar.cohort.local import run_here

    who = subjects(folder / "nothing", {f"{n:03}": "good" for n in range(count)})
    shutil.rmtree(folder / "out_nothing", ignore_errors=True)
    start = time.perf_counter()
    ready = time.perf_counter()
    outcomes = list(run_here(who, order(folder / "out_nothing"), 2, lambda event: None))
    done = time.perf_counter()
    assert all(outcome.state == "done" for outcome in outcomes)
    return ready - start, (done - ready) / count


def real_patients() -> dict:
    """What real patients took, from the page of results: median core-seconds, and the largest memory."""
    lines = (PROJECT / "research" / "results" / "patients.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    rows = [dict(zip(table[0], cells)) for cells in table[1:]]
    rows = [row for row in rows if row["seconds"]]
    return {
        "real_patients": len(rows),
        "real_core_seconds": round(median(float(row["seconds"]) * int(row["threads"]) for row in rows)),
        "real_peak_gb": max(float(row["peak_gb"]) for row in rows),
    }


def study(figures: dict, nodes: int) -> dict:
    """A study on so many nodes: waves of patients, each as long as one whose core's neighbors are busy."""
    at_once = nodes * min(CORES, int(NODE_GB // CASE_GB))
    waves = math.ceil(PATIENTS / at_once)
    patient = figures["real_core_seconds"] * max(1.0, figures["neighbor_slowdown"])
    patient += 2 * figures["engine_seconds_per_subject"]  # measured with two at a time
    hours = (figures["engine_start_seconds"] + waves * patient) / 3600
    return {"nodes": nodes, "at_once": at_once, "waves": waves, "hours": round(hours, 2)}


def measure(folder: Path, quick: bool) -> dict:
    import small_patients

    flags = small_patients.write_model(folder / "model")
    most = 2 if quick else 16
    raw = folder / f"raw_{most}"
    for n in range(most):
        small_patients.write_patient(raw, f"{n + 1:02}", seed=n)
    some = 2 if quick else 4
    label = [word for n in range(some) for word in ("--participant-label", f"{n + 1:02}")]
    cohort(raw, folder / "out", flags, "--index", "0")  # compiles
    _, (record,) = cohort(raw, folder / "out", flags, "--index", "0")
    wide, records = cohort(raw, folder / "out", flags, *label, "--workers", "2", "--threads", "1")
    deep, _ = cohort(raw, folder / "out", flags, *label, "--workers", "1", "--threads", "2")
    begin, each = engine_cost(folder, 10 if quick else 60)
    figures = {
        "one_alone_seconds": round(record["seconds"], 2),
        "subjects": some,
        "2_workers_1_thread_seconds": round(wide, 1),
        "1_worker_2_threads_seconds": round(deep, 1),
        "throughput_ratio": round(deep / wide, 3),
        "one_alone_cpu_seconds": record["cpu_seconds"],
        "two_at_a_time_cpu_seconds": round(mean(r["cpu_seconds"] for r in records), 1),
        "neighbor_slowdown": round(mean(r["cpu_seconds"] for r in records) / record["cpu_seconds"], 3),
        "engine_start_seconds": round(begin, 2),
        "engine_seconds_per_subject": round(each, 3),
        "load": round(os.getloadavg()[1], 1),
    }
    if not quick:
        seconds, _ = cohort(raw, folder / "out", flags, "--workers", "2")
        figures[f"{most}_subjects_seconds"] = round(seconds, 1)
        figures[f"{most}_over_{some}"] = round(seconds / wide, 3)
        figures |= real_patients()
    return figures


def page(figures: dict, studies: list[dict]) -> str:
    lines = ["# How fast a cohort goes", "", *__doc__.split("\n\n")[1].splitlines(), ""]
    lines += [
        "Two cores (`load` is the mean number of processes that wanted one, those of this run among them):",
        "ratios within the run say more than seconds, and CPU seconds more than those on the clock.",
        "",
        "| figure | value |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value} |" for name, value in figures.items()]
    lines += [
        "",
        f"## {PATIENTS:,} patients",
        "",
        f"Worked out, not run: nodes of {CORES} cores like ours and {NODE_GB} GB, so "
        f"{min(CORES, int(NODE_GB // CASE_GB))} patients at a time on each,",
        f"{CASE_GB:g} GB and one thread each. A patient takes `real_core_seconds` (seconds times threads,",
        "median of [real patients](patients.md), who shared their machine: rather too long) times",
        "`neighbor_slowdown` if above 1 (what two at a time",
        "cost each other here; many cores on one memory may cost more), and what the engine costs. Nobody",
        "waits for others, but the end comes with the slowest of the last ones.",
        "",
        "| nodes | patients at a time | waves | hours |",
        "|---|---|---|---|",
    ]
    lines += [f"| {s['nodes']} | {s['at_once']} | {s['waves']} | {s['hours']} |" for s in studies]
    last = studies[-1]
    lines += [
        "",
        f"With {last['nodes']} nodes all patients run at once and most of the cores idle: beyond "
        f"{math.ceil(PATIENTS / CORES)} nodes more threads per",
        "patient (`--threads`) would help, more nodes would not.",
        "",
        "Made by `python benchmarks/cohort.py`.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, help="where patients and results lie (default: temporary)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure((arguments.folder or Path(temporary)).resolve(), arguments.quick)
    if not arguments.quick:
        studies = [study(figures, nodes) for nodes in (1, 10, 100)]
        text = page(figures, studies)
        (PROJECT / "research" / "results" / "cohort.md").write_text(text, encoding="utf-8")
        figures["studies"] = studies
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
