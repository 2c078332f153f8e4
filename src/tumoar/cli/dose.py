"""`tumoar dose`: dose to every structure, compared with limits and references."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.vocabulary.errors import UsageError, printable

if TYPE_CHECKING:
    from tumoar.io.dose import GivenDose
    from tumoar.radiotherapy.limits import Limit, Verdict
    from tumoar.radiotherapy.structures import Dosed, Measured

KIND = "set of doses"
PICTURES = ("dvh.png", "dvh.svg")
HOT = 0.03  # cm³
MOST_SHOWN = 8  # names in a message
SHOWN = ("volume_cm3", "mean_Gy", "D5_Gy", "D50_Gy", "D95_Gy", "D0.03cc_Gy")


def dose(
    structures: Annotated[Path, typer.Argument(help="A finished result, or an RTSTRUCT file.")],
    dose: Annotated[
        Path, typer.Option(metavar="FILE", help="RTDOSE, NIfTI or NRRD, in Gy.", show_default=False)
    ],
    fractions: Annotated[
        int | None,
        typer.Option(metavar="N", help="The dose is for one of N equal fractions (1: for the whole course)."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="RS.dcm", help="Other outlines, for comparison.")
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="TOML file with limits, instead of the built-in ones.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="BRSTEM=Brainstem", help="Match a structure of an RTSTRUCT file."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for tables and curves (default: the result)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing doses.")] = False,
) -> None:
    """Compute dose-volume histograms and check dose limits."""
    from tumoar.io.dose import load_dose
    from tumoar.io.manifest import read_manifest
    from tumoar.io.outputs import require_empty
    from tumoar.radiotherapy.structures import TARGETS, measure_doses, organs_of
    from tumoar.vocabulary.aliases import parse_map

    inputs = [path for path in (structures, dose, reference, limits) if path is not None]
    if output is not None:
        require_empty(output, inputs, overwrite=overwrite, kind=KIND)
    bounds = _limits(limits)
    own = [name for path in (structures, reference) if path is not None for name in organs_of(path)]
    pairs = parse_map(names or [], [*own, *TARGETS, *(limit.structure for limit in bounds)])
    given = load_dose(dose, fractions=fractions)
    seen = read_manifest(structures) if structures.is_dir() else None
    found = measure_doses(structures, given.image, given.person, pairs)
    other = measure_doses(reference, given.image, given.person, pairs) if reference is not None else None
    ours, theirs = found.structures, other.structures if other else ()
    is_result = structures.is_dir()
    _require_mapped(pairs, [*(() if is_result else ours), *theirs])
    doubts = dict.fromkeys(d for d in (given.doubt, found.doubt, other.doubt if other else "") if d)
    notes = [*given.notes, *doubts]
    for note in (*notes, *found.notes, *(other.notes if other else ())):
        typer.echo(f"note: {note}")
    for line in dict.fromkeys(f"{i.given} is matched to {i.name}" for i in (*ours, *theirs) if i.given):
        typer.echo(line)
    rows = [
        *_rows(ours, "result" if is_result else "structures", notes),
        *_rows(theirs, "reference", notes),
    ]
    for row in rows:
        cells = "  ".join(f"{name} {row[name]}" for name in SHOWN)
        typer.echo(f"{row['name']:16} {row['from']:10} {cells}")
        if row["outside_percent"] > 0:
            share = max(row["outside_percent"], 0.1)
            typer.echo(f"note: {share:.1f} % of {row['name']} lies outside the dose, counted as 0")
    verdicts = _judge_limits(bounds, found, given, is_own=limits is not None)
    for verdict in verdicts:
        _print_verdict(verdict)
    _print_unmatched(verdicts, ours, is_own=limits is not None)
    if output is None and not is_result:
        return
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "dose.tsv": rows,
        "limits.tsv": [_row_with_doubts(v, doubts) for v in verdicts],
    }
    _write(output, (structures, seen), tables, ours, theirs, inputs, overwrite=overwrite)


def _limits(path: Path | None) -> tuple[Limit, ...]:
    from tumoar.io.files import read_toml
    from tumoar.radiotherapy.limits import default_limits, parse_limits

    return default_limits() if path is None else parse_limits(read_toml(path, "the limits file"))


def _require_mapped(pairs: Mapping[str, str], found: Sequence[Dosed]) -> None:
    """Refuse a --map that matches no structure: a misspelled one would be ignored silently."""
    there = sorted({item.given or item.name for item in found})
    absent = [name for name in pairs if name not in there]
    if absent:
        raise UsageError(
            "map",
            f"no structure '{printable(absent[0])}' in the RTSTRUCT files",
            found=(", ".join(there[:MOST_SHOWN]) or "none") + (" …" if len(there) > MOST_SHOWN else ""),
            do="check spelling and letter case",
        )


def _rows(found: Sequence[Dosed], source: str, notes: Sequence[str]) -> list[dict[str, Any]]:
    """Figures of every structure; with samples, also the central 90 % of mean, D5 and D0.03cc."""
    import numpy as np

    rows = []
    for item in found:
        row: dict[str, Any] = {"name": item.name, "from": source}
        row |= {k: round(v, 3) for k, v in item.found.dvh.figures().items()}
        samples = [s for s in item.found.samples if s.volume]
        for key, values in (
            ("mean", [s.mean for s in samples]),
            ("D5", [s.D(5) for s in samples]),
            ("D0.03cc", [s.D_cc(HOT) for s in samples]),
        ):
            is_known = bool(values) and not np.isnan(values).any()
            low, high = np.quantile(values, [0.05, 0.95]) if is_known else (None, None)
            row |= {f"{key}_p05": _cell(low), f"{key}_p95": _cell(high)}
        is_small = 0 < item.found.dvh.volume < HOT
        small = [f"smaller than {HOT} cm³: no D{HOT}cc, see its highest dose"] if is_small else []
        row["named_in_file"] = item.given
        row["note"] = "; ".join([*small, *notes])
        rows.append(row)
    return rows


def _cell(value: float | None) -> Any:
    return "" if value is None else round(float(value), 3)


def _finite_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the report, with finite numbers only."""
    return {k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def _judge_limits(
    limits: Sequence[Limit], measured: Measured, dose: GivenDose, *, is_own: bool
) -> list[Verdict]:
    """Verdict on every limit, gray without a matching structure; each includes notes on the dose."""
    from tumoar.radiotherapy.limits import judge, mark_unmatched
    from tumoar.vocabulary.aliases import canonical_name

    found = measured.structures
    # One of our names that was mapped away, or used by another structure, no longer counts.
    by_name = {i.given: i for i in found if i.given and canonical_name(i.given) in (None, i.name)}
    by_name |= {item.name: item for item in found}
    verdicts = []
    for limit in limits:
        names = (limit.structure, canonical_name(limit.structure) or "")
        item = next((by_name[name] for name in names if name in by_name), None)
        if item is None:
            is_empty = bool(set(names) & set(measured.empty))
            verdicts.append(
                mark_unmatched(limit, "it has no closed contours") if is_empty else mark_unmatched(limit)
            )
            continue
        verdict = judge(replace(limit, structure=item.name), item.found.dvh, item.found.samples)
        is_unknown = dose.is_low or bool(item.lacking)  # dose, or part of the structure, may be missing
        above = "what is outlined is above the limit" if is_unknown and verdict.light == "amber" else ""
        note = "; ".join(text for text in (verdict.note, item.lacking, above, *dose.notes) if text)
        light = "gray" if is_unknown and verdict.light != "red" else verdict.light
        verdicts.append(replace(verdict, note=note, light=light))
    if is_own and not any(v.is_matched for v in verdicts):
        raise UsageError(
            "limits",
            "no limit matches a structure",
            found=", ".join(sorted({limit.structure for limit in limits})[:MOST_SHOWN]),
            do="check the names, or match structures with --map",
        )
    return verdicts


def _row_with_doubts(verdict: Verdict, doubts: Iterable[str]) -> dict[str, Any]:
    """Row of limits.tsv, including what could not be checked."""
    row = verdict.row()
    more = doubts if verdict.is_matched else ()
    return row | {"note": "; ".join(text for text in (row["note"], *more) if text)}


def _print_verdict(verdict: Verdict) -> None:
    if not verdict.is_matched:
        return
    row = verdict.row()
    above = row["share_of_samples_above"]
    shares = f", above it in {100 * above:.0f} % of the samples" if above != "" else ""
    note = f"; {row['note']}" if row["note"] else ""
    known = "not known" if math.isnan(row["value"]) else row["value"]
    value = f"{row['metric']} {known} (limit {row['limit']})"
    typer.echo(f"{row['light']:5} {row['structure']:14} {value}{shares}{note}")


def _print_unmatched(verdicts: Sequence[Verdict], found: Sequence[Dosed], *, is_own: bool) -> None:
    """Print what was not judged: limits without a structure, and structures without a limit."""
    reasons = dict.fromkeys(v.note for v in verdicts if not v.is_matched)
    for reason in reasons:
        absent = dict.fromkeys(v.limit.structure for v in verdicts if not v.is_matched and v.note == reason)
        text = f": {', '.join(absent)}: {reason}"
        # The user's own limits matter: that they were not judged must not get lost in a long table.
        typer.echo(f"NOT JUDGED{text}" if is_own else f"not judged{text}", err=is_own)
    judged = {v.limit.structure for v in verdicts if v.is_matched}
    free = [item.name for item in found if item.name not in judged]
    if free:
        typer.echo(f"not judged: {', '.join(free)}: no limit")


def _write(
    folder: Path | None,
    place: tuple[Path, Mapping[str, Any] | None],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    ours: Sequence[Dosed],
    theirs: Sequence[Dosed],
    given: Sequence[Path],
    *,
    overwrite: bool,
) -> None:
    """Write tables and curves to a separate folder, or to the result and its report."""
    from tumoar.io.files import absolute
    from tumoar.io.outputs import new_folder
    from tumoar.report import read_page, render
    from tumoar.report.dose import curve, picture
    from tumoar.result.folder import REPORT, add_files, write_table

    there = [item for item in (*ours, *theirs) if item.found.dvh.volume]
    top = 1.03 * max((item.found.dvh.maximum for item in there), default=1.0)
    curves, references = (
        [curve(i.name, i.color, i.found, top) for i in side if i.found.dvh.volume] for side in (ours, theirs)
    )
    result, seen = place
    writes = (
        add_files(result, seen) if folder is None else new_folder(folder, KIND, given, overwrite=overwrite)
    )
    with writes as work:
        for name, rows in tables.items():
            write_table(work / name, rows)
        picture([work / name for name in PICTURES], curves, references)
        if folder is None:
            page = read_page(result / REPORT)
            page |= {"dose": curves, "limits": [_finite_row(row) for row in tables.get("limits.tsv", ())]}
            (work / REPORT).write_text(render(page), encoding="utf-8")
    written = [*tables, *PICTURES, *([REPORT] if folder is None else [])]
    typer.echo(f"{absolute(folder or result).name}: {', '.join(written)}")
