"""What was tried to break the program, and how often it held.

Each row of the goal that can be run here is a set of tests, by which it can be repeated. A test counts once,
or as often as it tells (files, kills, steps). Rows that were not run this time keep the line of the last run.

    python experiments/reliability.py [--quick] [--rows R10 R13 …]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

PROJECT = Path(__file__).resolve().parents[1]
RESULT = PROJECT / "docs" / "results" / "reliability.md"


@dataclass(frozen=True)
class Row:
    """A row of the goal: what it is about, how many are wanted, and the tests that show it."""

    id: str
    what: str
    wanted: str
    tests: str


ROWS = (
    Row("R1", "sampler against enumeration", "5 models", "tests/inference/test_enumeration.py"),
    Row("R2", "joint-distribution test (Geweke)", "90 z", "tests/inference/test_geweke.py"),
    Row("R3", "simulation-based calibration", "25 parameters", "tests/inference/test_sbc.py"),
    Row("R9", "orientation and format", "1,164",
        "tests/io/test_nifti.py::test_every_storage_order_at_every_place "
        "tests/io/test_nifti.py::test_every_storage_order_is_one_image_in_world_space "
        "tests/io/test_dicom.py::test_every_voxel_lies_where_it_was"),
    Row("R10", "bad inputs through the command line", "150", "tests/cli/test_bad_inputs.py"),
    Row("R11", "damaged NIfTI files", "20,000",
        "tests/io/test_nifti_fuzz.py::test_twenty_thousand_damaged_files "
        "tests/io/test_nifti_fuzz.py::test_a_file_cut_anywhere_is_refused"),
    Row("R12", "damaged DICOM files", "10,000",
        "tests/io/test_dicom_fuzz.py::test_ten_thousand_damaged_files"),
    Row("R13", "killed at every step of writing: folders of small files", "all steps",
        "tests/io/test_faults.py::test_killed_at_every_step_of_publishing "
        "tests/io/test_faults.py::test_killed_at_every_step_of_adding"),
    Row("R13b", "killed at every step of writing a real result, and at any time", "300",
        "tests/cli/test_faults.py tests/cli/test_killed.py"),
    Row("R14", "disk full, read-only, failing", "60",
        "tests/io/test_faults.py::test_a_disk_that_fails_at_any_step "
        "tests/io/test_faults.py::test_a_disk_that_fails_while_adding "
        "tests/io/test_faults.py::test_files_that_may_not_grow "
        "tests/io/test_faults.py::test_a_full_disk_and_one_that_is_read_only"),
    Row("R17", "another run on the same output", "50",
        "tests/cli/test_bad_inputs.py::test_another_run_on_the_same_output tests/cli/test_lock.py"),
    Row("R22", "dose-volume histograms against formulas", "500", "tests/test_dose.py tests/test_contours.py"),
    Row("R23", "round trips of contours and segments", "300",
        "tests/io/test_rtstruct.py::test_many_round_trips tests/io/test_seg.py"),
    Row("R24", "hostile files", "100", "tests/io/test_security.py tests/io/test_store.py"),
    Row("R25", "nobody named outside the DICOM files", "all outputs",
        "tests/cli/test_radiotherapy.py::test_nobody_is_named_outside_the_dicom_files "
        "tests/cli/test_radiotherapy_whole.py"),
)  # fmt: skip
MISSING = """Not on this page: R4 to R6 (tests of the fit and the mesh in the suite), R7 ([planted
bugs](planted_bugs.md)), R8 (mutation score: not measured), R15 and R16 (memory limits and signals: single
tests, not counted), R18 (a cohort, on its own page), R19 to R21, R26 to R28."""


def command(row: Row) -> list[str]:
    return ["-m", "pytest", "-m", "slow or not slow", *row.tests.split()]


def run(row: Row) -> tuple[str, int, int]:
    """The line of a row, how many were tried, and how many held."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([sys.executable, *command(row), *options], cwd=PROJECT, capture_output=True)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        tried = held = skipped = 0
        for case in cases:
            count = (
                sum(int(p.get("value", 1)) for p in case.iter("property") if p.get("name") == "tried") or 1
            )
            is_bad = case.find("failure") is not None or case.find("error") is not None
            if case.find("skipped") is not None:
                skipped += 1
                continue
            tried, held = tried + count, held + (0 if is_bad else count)
    repeat = "`pytest -m 'slow or not slow' " + row.tests + "`"
    more = f" ({skipped} skipped)" if skipped else ""
    date = time.strftime("%Y-%m-%d")
    return (
        f"| {row.id} | {row.what} | {row.wanted} | {tried}{more} | {held} | {date} | {repeat} |",
        tried,
        held,
    )


def known_lines() -> dict[str, str]:
    """The lines of an earlier page."""
    if not RESULT.is_file():
        return {}
    lines = RESULT.read_text(encoding="utf-8").splitlines()
    return {found[1]: line for line in lines if (found := re.match(r"\| (R\d+b?) \|", line))}


def page(lines: dict[str, str]) -> str:
    text = (__doc__ or "").split("\n\n", 1)[1].split("\n\n    python")[0].replace("\n", " ")
    blank = {r.id: f"| {r.id} | {r.what} | {r.wanted} | not run yet | | | `pytest {r.tests}` |" for r in ROWS}
    table = [lines.get(row.id, blank[row.id]) for row in ROWS]
    head = ["| | what | wanted | tried | held | on | repeated by |", "|---|---|---|---|---|---|---|"]
    return "\n".join(["# Hard to break", "", text, "", *head, *table, "", MISSING]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="disk failures and hostile files alone, no page")
    parser.add_argument("--rows", nargs="*", default=[], help="only these")
    given = parser.parse_args()
    wanted = ["R14", "R24"] if given.quick else given.rows or [row.id for row in ROWS]
    lines, figures = known_lines(), {}
    for row in (row for row in ROWS if row.id in wanted):
        lines[row.id], tried, held = run(row)
        figures[row.id] = {"tried": tried, "held": held}
        if not given.quick:
            RESULT.write_text(page(lines), encoding="utf-8")  # after every row, so that a stop loses nothing
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
