"""The paper's method and the default, and each deviation by itself, on the development patients.

python research/deviations.py [--quick] [--patients NAME,…] [--rows NAME,…] [--workers 2] [--flags "…"]

Runs `tumoar segment` with T1c, FLAIR, T2 and T1 in these configurations: the default; the paper's method;
the default with one deviation taken back (`default-NAME`); and the paper's method with one added
(`paper+NAME`). A deviation is a row of research/paper.toml whose settings differ from the defaults. The
patients are development data: settings were chosen on them (decision 0036).

Finished patients are kept in build/patients/deviations-CONFIGURATION and interrupted ones continued, as in
research/patients.py, so the command can be repeated with more patients or rows. `--quick` has one patient,
two rows and few sweeps, in folders of its own, and shows only that everything runs.

Writes research/results/deviations.md: Dice and Hausdorff distance (95 %) of core and whole tumor and seconds
per patient, and for each deviation the paired difference to the configuration that it changes, with 95 %
bootstrap intervals over patients. Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from paper import Row, read_table
from patients import PROJECT, RESULTS, interval, patients, run
from patients import Row as Scored
from patients import scores as scores_of

PAGE = PROJECT / "research" / "results" / "deviations.md"
CONTRASTS = ("t1c", "flair", "t2", "t1")
FIGURES = ("core_dice", "core_hd95", "whole_dice", "whole_hd95", "seconds")
QUICK = {"gibbs.burn_in": 3, "gibbs.samples": 3, "gem.outer_iterations": 1, "gem.em_iterations": 5}


@dataclass(frozen=True)
class Configuration:
    """Settings on top of a method; `base` is the configuration that differs by one deviation."""

    name: str
    method: str
    settings: Mapping[str, Any]
    base: str | None = None


def configurations(rows: Sequence[Row]) -> list[Configuration]:
    """The two methods, and each of them with one row of the other."""
    found = [Configuration(method, method, {}) for method in ("default", "paper")]
    found += [Configuration(f"default-{r.name}", "default", r.paper, "default") for r in rows]
    return found + [Configuration(f"paper+{r.name}", "paper", r.added or r.defaults, "paper") for r in rows]


def to_toml(settings: Mapping[str, Any]) -> str:
    """A settings file; JSON of texts, numbers and truth values is TOML."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(["# written by research/deviations.py", *lines]) + "\n"


def compute(
    chosen: Sequence[Configuration],
    prefix: str,
    names: Sequence[str],
    more: Mapping[str, Any],
    flags: str,
    workers: int,
) -> None:
    """Segment every chosen patient that has no result yet; configurations of a patient follow each other."""
    with ThreadPoolExecutor(workers) as pool:
        for patient in patients():
            if patient.name not in names:
                continue
            for c in chosen:
                folder = RESULTS / f"{prefix}{c.name}"
                folder.mkdir(parents=True, exist_ok=True)
                file = folder / "settings.toml"
                file.write_text(to_toml({**more, **c.settings}), encoding="utf-8")
                words = ["--method", c.method, "--config", str(file), "--threads", "1", *shlex.split(flags)]
                pool.submit(run, patient, folder / patient.name, CONTRASTS, words)


def scores(name: str, names: Sequence[str]) -> dict[str, Scored]:
    """Scores of the finished patients of a configuration, with the seconds they took."""
    found = {k: row for k, row in scores_of(name).items() if k in names}
    for patient, row in found.items():
        seconds = json.loads((RESULTS / name / patient / "run.json").read_text(encoding="utf-8"))["seconds"]
        row["seconds"] = float(sum(seconds[stage] for stage in ("fit", "sample")))
    return found


def difference(rows: Mapping[str, Scored], base: Mapping[str, Scored], figure: str) -> list[float] | None:
    """Paired mean difference and its interval, over patients in which both are finite."""
    both = [n for n in rows if n in base]
    change = np.array([float(rows[n][figure]) - float(base[n][figure]) for n in both])
    change = change[np.isfinite(change)]
    return list(interval(change)) if len(change) else None


def cell(rows: Mapping[str, Scored], base: Mapping[str, Scored] | None, figure: str) -> str:
    """A mean, or a paired difference."""
    digits = 3 if figure.endswith("dice") else 1
    if base is not None:
        found = difference(rows, base, figure)
        if found is None:
            return ""
        mean, low, high = found
        return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
    values = np.array([float(r[figure]) for r in rows.values()])
    values = values[np.isfinite(values)]
    if not len(values):
        return ""
    mean, low, high = interval(values)
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def page(chosen: Sequence[Configuration], found: Mapping[str, Mapping[str, Scored]]) -> str:
    """The methods, then the deviations taken back from the default and added to the paper's method."""
    lines = ["# Deviations from the paper, one by one", "", *__doc__.strip().splitlines()[4:8], ""]
    lines += [
        "Differences are paired, over the patients that both configurations have, with 95 % bootstrap",
        "intervals. Core is the GTV, which by default is the whole tumor where nothing enhances. Hausdorff",
        "distances and their differences are of patients in which both outlines exist. Seconds are those of",
        "fit and sampling on one thread, on a machine that does other work as well.",
        "",
    ]
    for title, base in (("Methods", None), ("Taken back", "default"), ("Added", "paper")):
        own = [c for c in chosen if c.base == base and found[c.name]]
        if not own:
            continue
        about = "" if base is None else f", minus {base}"
        lines += [f"## {title}{about}", "", "| configuration | patients | " + " | ".join(FIGURES) + " |"]
        lines.append("|" + "---|" * (len(FIGURES) + 2))
        for c in own:
            rows, against = found[c.name], None if base is None else found[base]
            count = len(rows) if against is None else len(set(rows) & set(against))
            lines.append(
                f"| {c.name} | {count} | " + " | ".join(cell(rows, against, f) for f in FIGURES) + " |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--patients", help="only these, separated by commas")
    parser.add_argument("--rows", help="only these deviations, separated by commas; none: the methods alone")
    parser.add_argument("--workers", type=int, default=2, help="patients at a time, one thread each")
    parser.add_argument("--flags", default="", help="further flags of tumoar segment")
    options = parser.parse_args()
    rows = [r for r in read_table()[0] if r.deviates and r.compare]
    if options.rows is not None:
        wanted = options.rows.split(",")
        unknown = sorted(set(wanted) - {r.name for r in rows} - {"none"})
        if unknown:
            parser.error(f"no deviation {unknown[0]}; there are: {', '.join(r.name for r in rows)}")
        rows = [r for r in rows if r.name in wanted]
    names = options.patients.split(",") if options.patients else [p.name for p in patients()]
    if options.quick:
        names, rows = names[:1], rows[:2]
    chosen, prefix = configurations(rows), "quick-" if options.quick else "deviations-"
    compute(chosen, prefix, names, QUICK if options.quick else {}, options.flags, options.workers)
    found = {c.name: scores(f"{prefix}{c.name}", names) for c in chosen}
    text = page(chosen, found)
    if options.quick:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")
    figures = {
        c.name: {f: difference(found[c.name], found[c.base], f) for f in FIGURES}
        for c in chosen
        if c.base is not None
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
