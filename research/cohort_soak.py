"""Everything that happens to a cohort: bad images, a lost worker, a hanging subject, an interruption.

Small simulated patients run through `tumoar cohort` as a user would run it. A tenth of them have images that
must be refused, in six ways. While they run, one worker is killed, and the processes of one subject in
twenty; later the client is interrupted and started again, then one subject's process is frozen until its time
is up; a last start finishes that one. In the end every good subject must have been computed to its end
exactly once, every bad one be listed with its reason, and the client's memory have stayed flat. Once on this
machine alone, once with a scheduler and two workers that are processes of their own, over TCP.

    python research/cohort_soak.py [--quick] [--folder DIR] [--subjects 60] [--only tcp]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent))
import small_patients

PROJECT = Path(__file__).resolve().parents[1]
MINUTES = 4.0
STOPPING = 20.0  # seconds
OUTCOME = re.compile(r"\d s  (sub-\w+) (already done|done|FAILED)")


# ---- one start of the client ---------------------------------------------------------------------------


class Run:
    """The command, started; its lines and memory are read while it runs."""

    def __init__(self, arguments: list[str]):
        self.outcomes: list[tuple[str, str]] = []
        self.memory: list[float] = []
        self.lines: list[str] = []
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tumoar", *arguments], stderr=subprocess.PIPE, text=True
        )
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self._read, self._measure)]
        for thread in self.threads:
            thread.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            found = OUTCOME.search(line)
            if found:
                self.outcomes.append((found[1], found[2]))

    def _measure(self):
        """Between the first outcome and the last: neither while libraries load nor in the summary."""
        waiting: list[float] = []
        seen = 0
        while self.process.poll() is None:
            try:
                waiting.append(psutil.Process(self.process.pid).memory_info().rss / 1e6)
            except psutil.Error:
                return
            if len(self.outcomes) > seen:
                self.memory += waiting if seen else []
                waiting, seen = [], len(self.outcomes)
            time.sleep(0.5)

    def wait_for(self, condition):
        """Whether a condition came true before the end."""
        while self.process.poll() is None:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def end(self) -> int:
        """Exit code, when it is over."""
        code = self.process.wait()
        for thread in self.threads:
            thread.join(10)
        self.seconds = time.monotonic() - self.start
        return code


def children(out: Path) -> dict[str, psutil.Process]:
    """Processes of subjects that are running, by subject."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "tumoar.cli.child" in words:
            path = Path(words[words.index("--output") + 1])
            if path.parent.parent == out:
                found[path.name] = process
    return found


def after_stopping(out: Path) -> dict[str, psutil.Process]:
    """Processes that still run when those asked to end have had their time; a client of a cluster that is not
    its own leaves before its workers have seen to that."""
    end = time.monotonic() + STOPPING
    while (found := children(out)) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def kill_worker(out: Path) -> str:
    """Kill the worker of some subject; returns whose."""
    while True:
        for name, child in children(out).items():
            worker = child.parent()
            if worker is not None:
                worker.kill()
                return name
        time.sleep(0.1)


def kill_subjects(run: Run, out: Path, count: int, until: int, spared: Collection[str]) -> list[str]:
    """Kill the processes of so many subjects, one after the other; returns whose.

    The last of them before `until` subjects are through: what is killed is tried again in the same start.
    """
    begin, killed = len(run.outcomes), []
    while len(killed) < count:
        due = begin + len(killed) * (until - begin) // count
        if not run.wait_for(lambda due=due: len(run.outcomes) >= due):
            break
        for name, child in children(out).items():
            if name not in spared and name not in killed:
                with suppress(psutil.NoSuchProcess):  # it may have ended by itself
                    child.kill()
                    killed.append(name)
                break
        time.sleep(0.1)
    return killed


def freeze(out: Path, name: str) -> bool:
    """Stop a subject's process if it runs; returns whether it did."""
    child = children(out).get(name)
    if child is None:
        return False
    child.send_signal(signal.SIGSTOP)
    return True


@contextmanager
def scheduler(folder: Path):
    """A scheduler and two workers on the loopback address."""
    dask, file = (sys.executable, "-m", "dask"), folder / "scheduler.json"
    file.unlink(missing_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    place = ("--no-dashboard", "--host", "127.0.0.1")
    processes = [
        subprocess.Popen([*dask, "scheduler", "--port", "0", "--scheduler-file", str(file), *place], **quiet)
    ]
    try:
        while not (file.exists() and file.read_text().rstrip().endswith("}")):
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        local = ("--local-directory", str(folder / "dask"), "--nthreads", "1")
        processes += [subprocess.Popen([*dask, "worker", address, *local, *place], **quiet) for _ in "12"]
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)


# ---- the whole story -----------------------------------------------------------------------------------


def soak(
    folder: Path, raw: Path, bad: dict[str, int], flags: list[str], address: str | None, hangs: bool = True
) -> dict:
    """Three starts of the client with everything that can happen; returns figures, all faults counted."""
    out = folder / ("out_tcp" if address else "out_local")
    shutil.rmtree(out, ignore_errors=True)
    where = ["--scheduler", address, "--insecure-scheduler"] if address else ["--workers", "2"]
    command = ["cohort", str(raw), str(out), "participant", *where]
    command += ["--timeout", str(MINUTES), "--max-memory", "1.5", "--", *flags]
    names = sorted(p.name for p in raw.glob("sub-*"))
    count = len(names)
    hanging = next(n for n in reversed(names) if n not in bad)

    first = Run(command)
    first.wait_for(lambda: len(first.outcomes) >= count // 10)
    lost = kill_worker(out) if address else "none: there are no workers"
    killed = kill_subjects(first, out, count // 20, count // 4, {*bad, lost})
    first.wait_for(lambda: len(first.outcomes) >= count // 3)
    first.process.send_signal(signal.SIGINT)
    interrupted = first.end()
    left_running = len(after_stopping(out))

    second = Run(command)
    frozen = hangs and second.wait_for(lambda: freeze(out, hanging))
    second_code = second.end()
    with_hanging = read_group(out)

    third = Run(command)
    third_code = third.end()
    rows = read_group(out)
    runs = (first, second, third)
    told = [outcome for run in runs for outcome in run.outcomes]
    finished = {name: told.count((name, "done")) for name in names if name not in bad}
    reasons = {r["participant_id"]: (int(r["code"]), r["reason"]) for r in rows if r["state"] == "failed"}
    attempts = {r["participant_id"]: int(r["attempts"]) for r in rows if r["attempts"].isdigit()}
    memory = [m for run in runs for m in run.memory]
    states = [r["state"] for r in rows]
    return {
        "scheduler": "separate, two workers over TCP" if address else "this machine, two at a time",
        "subjects": count,
        "bad": len(bad),
        "worker_killed_with": lost,
        "killed": len(killed),
        "killed_and_tried_again": sum(attempts.get(name, 0) > 1 for name in killed),
        "interrupted_code": interrupted,
        "left_running_after_interruption": left_running,
        "frozen": frozen,
        "frozen_reason": reason_of(with_hanging, hanging),
        "codes": [interrupted, second_code, third_code],
        "good_finished_once": sum(n == 1 for n in finished.values()),
        "good_finished_otherwise": {name: n for name, n in finished.items() if n != 1},
        "good": len(finished),
        "bad_listed_with_reason": sum(
            reasons.get(name, (0, ""))[0] == code and reasons[name][1] != "" for name, code in bad.items()
        ),
        "failed_but_good": sorted(set(reasons) - set(bad)),
        "adds_up": len(rows) == count and states.count("done") + states.count("failed") == count,
        "results_whole": sum((out / "results" / n / "run.json").is_file() for n in finished),
        "leftovers": sorted(p.name for p in (out / "results").iterdir() if p.name.startswith(".")),
        "skipped_in_third": sum(state == "already done" for _, state in third.outcomes),
        "client_mb": [round(min(memory)), round(max(memory))] if memory else [],
        "client_growth": growth([run.memory for run in runs]),
        "validator_errors": validate(out),
        "minutes": round(sum(run.seconds for run in runs) / 60, 1),
    }


def growth(runs: list[list[float]]) -> float:
    """Largest growth of the client's memory from the first to the last tenth of a run, in %."""
    found = [0.0]
    for memory in runs:
        if len(memory) > 20:
            tenth = max(1, len(memory) // 10)
            found.append(100 * (np.median(memory[-tenth:]) / np.median(memory[:tenth]) - 1))
    return round(float(max(found)), 2)


def read_group(out: Path) -> list[dict[str, str]]:
    with open(out / "group.tsv", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def reason_of(rows: list[dict[str, str]], name: str) -> str:
    return next(r["reason"].split(" | ")[0] for r in rows if r["participant_id"] == name)


def validate(out: Path) -> int | None:
    """Errors that bids-validator finds; None where it is not installed."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    validator = shutil.which("bids-validator-deno", path=beside)
    if validator is None:
        return None
    told = subprocess.run([validator, "--format", "json", str(out)], capture_output=True, text=True)
    issues = json.loads(told.stdout)["issues"]["issues"]
    return sum(issue["severity"] == "error" for issue in issues)


def failures(found: dict) -> list[str]:
    """The figures that are not what they must be."""
    right = {
        "good_finished_once": found["good_finished_once"] == found["good"] == found["results_whole"],
        "bad_listed_with_reason": found["bad_listed_with_reason"] == found["bad"],
        "killed_and_tried_again": found["killed_and_tried_again"] == found["killed"],
        "failed_but_good": not found["failed_but_good"],
        "adds_up": found["adds_up"],
        "left_running_after_interruption": found["left_running_after_interruption"] == 0,
        "frozen_reason": found["frozen_reason"].startswith("E10-time") == found["frozen"],
        "leftovers": not found["leftovers"],
        "client_growth": found["client_growth"] < 5,
        "validator_errors": not found["validator_errors"],
    }
    return [name for name, is_right in right.items() if not is_right]


ROWS = {
    "subjects": "subjects",
    "bad": "of them with a bad image",
    "good": "good ones",
    "good_finished_once": "good ones finished exactly once",
    "bad_listed_with_reason": "bad ones listed with the expected code and a reason",
    "worker_killed_with": "worker killed while it had",
    "killed": "subjects whose process was killed",
    "killed_and_tried_again": "of them tried again by the same start",
    "codes": "exit codes of the three starts",
    "left_running_after_interruption": "processes left 20 seconds after the interruption",
    "frozen_reason": "what the frozen subject got in the second start",
    "skipped_in_third": "skipped as done in the third start",
    "adds_up": "group.tsv adds up",
    "failed_but_good": "good ones listed as failed",
    "leftovers": "unfinished things left among the results",
    "client_mb": "memory of the client, MB (least, most)",
    "client_growth": "its largest growth within a start, %",
    "validator_errors": "errors that bids-validator finds in the output",
    "minutes": "minutes for all three starts",
}


def write_page(runs: list[dict]) -> None:
    lines = ["# A cohort with everything that can happen to it", ""]
    lines += __doc__.split("\n\n")[1].splitlines()
    lines += ["", f"| | {' | '.join(r['scheduler'] for r in runs)} |", "|---" * (1 + len(runs)) + "|"]
    lines += [f"| {text} | {' | '.join(str(r[key]) for r in runs)} |" for key, text in ROWS.items()]
    wrong = [f"{ROWS[name]} ({run['scheduler']})" for run in runs for name in failures(run)]
    lines += ["", f"Not as it must be: {'; '.join(wrong) or 'nothing'}."]
    lines += ["", "Made by `python research/cohort_soak.py`.", ""]
    (PROJECT / "research" / "results" / "cohort_soak.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="four subjects, none hangs, local cluster")
    parser.add_argument("--folder", type=Path, help="where patients and results lie (default: temporary)")
    parser.add_argument("--subjects", type=int, default=60)
    parser.add_argument(
        "--only", choices=("local", "tcp"), help="one scheduler; the other's figures as before"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        count = 4 if arguments.quick else arguments.subjects
        raw = folder / f"raw_{count}"
        flags = small_patients.write_model(folder / "model")
        bad = small_patients.write_cohort(raw, count)
        places = ("local",) if arguments.quick else (arguments.only,) if arguments.only else ("local", "tcp")
        for place in places:
            with scheduler(folder) if place == "tcp" else nullcontext() as address:
                found = soak(folder, raw, bad, flags, address, hangs=not arguments.quick)
            (folder / f"figures_{place}.json").write_text(json.dumps(found))
        files = [folder / f"figures_{place}.json" for place in ("local", "tcp")]
        runs = [json.loads(file.read_text()) for file in files if file.exists()]
    if not arguments.quick:
        write_page(runs)
    print(json.dumps({"passed": not any(map(failures, runs)), "runs": runs}))


if __name__ == "__main__":
    main()
