"""`tumoar evaluate`: compare results of one or many patients with references and other results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.vocabulary.errors import UsageError, printable

if TYPE_CHECKING:
    from tumoar.radiotherapy.agreement import Scored
    from tumoar.result.scores import Scores

    Values = Mapping[str, Sequence[int]]

KIND = "set of scores"
MARGINS = ("CTV", "PTV")
VALUES = re.compile(r"\s*-?[0-9]{1,9}\s*(,\s*-?[0-9]{1,9}\s*)*")
SHOWN = ("dice", "hausdorff95", "surface_dice_2mm", "volume", "reference_volume")


def evaluate(
    results: Annotated[list[Path], typer.Argument(help="Result folders, or label maps.", show_default=False)],
    reference: Annotated[
        list[Path],
        typer.Option(help="Label map, mask, RTSTRUCT or DICOM-SEG for each result, in the same order."),
    ],
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=1,3",
            help="Values of the references; GTV+Edema=1,2 for a union. Default: as in results.",
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="BRSTEM=Brainstem",
            help="Match a name in the references; common spellings are known.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Other results of the same patients, for comparison.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables and box plots.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing scores.")] = False,
) -> None:
    """Compute Dice, Hausdorff distance (95 %), surface distances and volumes."""
    from tumoar.io.outputs import require_empty
    from tumoar.radiotherapy.agreement import names_of
    from tumoar.vocabulary.aliases import parse_map

    files = [*results, *reference, *(against or [])]
    if output is not None:
        require_empty(output, files, overwrite=overwrite, kind=KIND)
    known = [*dict.fromkeys(name for path in results for name in names_of(path)), *MARGINS]
    meaning = parse_values(values or [], known)
    given = parse_map(map_ or [], known)
    for others, name in ((reference, "--reference"), (against, "--against")):
        if others is not None and len(others) != len(results):
            count = "1 result" if len(results) == 1 else f"{len(results)} results"
            what = f"{count} but {len(others)} times {name}"
            raise UsageError("evaluate", what, do="give one for each result, in the same order")
    _require_suited(reference, meaning, given)
    scored = _score_all(results, reference, meaning, given)
    ours = [one.scores for one in scored]
    names = _distinguish(results)
    rows = _rows(names, ours)
    for row in rows:
        cells = "  ".join(f"{name} {row[name]}" for name in SHOWN)
        typer.echo(f"{row['result']:20} {row['structure']:14} {cells}")
    _print_notes(names, scored)
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"scores.tsv": rows}
    if len(ours) > 1:
        tables["summary.tsv"] = _summaries(ours)
        for line in tables["summary.tsv"]:
            typer.echo(
                f"{line['structure']:14} {line['score']:18} mean {line['mean']}  median {line['median']}"
                f"  patients {line['patients']}"
            )
    theirs = None
    if against:
        compared = _score_all(against, reference, meaning, given)
        theirs = [one.scores for one in compared]
        _print_notes(_distinguish(against), compared)
        tables["against.tsv"] = _rows(_distinguish(against), theirs)
        tables["paired.tsv"] = _compare_pairs(ours, theirs)
        for pair in tables["paired.tsv"]:
            interval = (
                f"95 % {pair['low']:+} to {pair['high']:+}, {pair['patients']} patients"
                if pair["patients"] > 1
                else f"{pair['patients']} patient{'' if pair['patients'] else 's'}: no interval"
            )
            typer.echo(f"{pair['structure']:14} {pair['score']:12} {pair['difference']:+} ({interval})")
    if output is not None:
        _write(output, tables, ours, theirs, files, overwrite=overwrite)


def parse_values(given: Sequence[str], known: Sequence[str]) -> Values:
    """Parse structures, or unions of them, and their values in the references."""
    out: dict[str, Sequence[int]] = {}
    for text in given:
        name, _, numbers = (part.strip() for part in text.partition("="))
        parts = name.split("+")
        if not set(parts) <= set(known):
            raise UsageError("structures", f"no structure '{printable(name)}'", do=f"use {', '.join(known)}")
        if not VALUES.fullmatch(numbers):
            raise UsageError("evaluate", f"no values in '{printable(text)}'", do="write NAME=1,3")
        if len(set(parts)) < len(parts) or any(set(parts) == set(other.split("+")) for other in out):
            raise UsageError("evaluate", f"{name} is given twice", do="give all its values together")
        out[name] = sorted({int(n) for n in numbers.split(",")})
    return out


def _score_all(
    results: Sequence[Path], references: Sequence[Path], meaning: Values, given: Mapping[str, str]
) -> list[Scored]:
    """Score every result; a mapped name must occur in at least one reference."""
    from tumoar.radiotherapy.agreement import score

    found = [score(a, b, meaning, given) for a, b in zip(results, references)]
    absent = sorted(set(given) - {name for one in found for name in one.mapped})
    if absent:
        raise UsageError(
            "map",
            f"no structure '{printable(absent[0])}' in the references",
            do="check spelling and letter case",
        )
    return found


def _require_suited(references: Sequence[Path], meaning: Values, given: Mapping[str, str]) -> None:
    """Refuse --values for structure sets and --map for label maps."""
    from tumoar.radiotherapy.agreement import is_nifti

    for path in references:
        if meaning and not is_nifti(path):
            raise UsageError("evaluate", "--values is for label maps", file=path, do="use --map for names")
    if given and all(map(is_nifti, references)):
        raise UsageError("map", "--map is for structure sets, label maps have no names", do="use --values")


def _distinguish(paths: Sequence[Path]) -> list[str]:
    """Names of results, numbered if they repeat."""
    from tumoar.io.files import absolute

    names = [absolute(path).name for path in paths]
    counts = [names[: number + 1].count(name) for number, name in enumerate(names)]
    return [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts)]


def _print_notes(names: Sequence[str], scored: Sequence[Scored]) -> None:
    for name, one in zip(names, scored):
        for note in one.notes:
            typer.echo(f"note: {name}: {note}")


def _names(scores: Sequence[Mapping[str, Scores]]) -> list[str]:
    """Names of all structures that any patient has."""
    return list(dict.fromkeys(name for of_patient in scores for name in of_patient))


def _rows(results: Sequence[str], scores: Sequence[Mapping[str, Scores]]) -> list[dict[str, Any]]:
    return [
        {
            "result": result,
            "structure": name,
            **{key: round(value, 4) for key, value in found.as_dict().items()},
        }
        for result, of_patient in zip(results, scores)
        for name, found in of_patient.items()
    ]


def _summaries(scores: Sequence[Mapping[str, Scores]]) -> list[dict[str, Any]]:
    from tumoar.result.scores import summarize

    rows = []
    for name in _names(scores):
        there = [s[name] for s in scores if name in s]
        for key, (mean, median) in summarize(there).items():
            figures = {"mean": round(mean, 4), "median": round(median, 4), "patients": len(there)}
            rows.append({"structure": name, "score": key, **figures})
    return rows


def _compare_pairs(
    ours: Sequence[Mapping[str, Scores]], theirs: Sequence[Mapping[str, Scores]]
) -> list[dict[str, Any]]:
    import numpy as np

    from tumoar.result.scores import compare_paired

    rows = []
    for name in _names(ours):
        both = [(a[name], b[name]) for a, b in zip(ours, theirs) if name in a and name in b]
        for key in ("dice", "hausdorff95") if both else ():
            a, b = (np.array([getattr(s, key) for s in side]) for side in zip(*both))
            mean, low, high, count = compare_paired(a, b, np.random.default_rng(0))
            figures = {"difference": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}
            rows.append({"structure": name, "score": key, **figures, "patients": count})
    return rows


def _write(
    folder: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    ours: Sequence[Mapping[str, Scores]],
    theirs: Sequence[Mapping[str, Scores]] | None,
    given: Sequence[Path],
    *,
    overwrite: bool,
) -> None:
    from tumoar.io.files import absolute
    from tumoar.io.outputs import new_folder
    from tumoar.report.boxes import box_plots
    from tumoar.result.folder import write_table

    with new_folder(folder, KIND, given, overwrite=overwrite) as work:
        for name, rows in tables.items():
            write_table(work / name, rows)
        box_plots(work / "boxes.png", {"this": ours} | ({"against": theirs} if theirs else {}))
    typer.echo(f"{absolute(folder).name}: {', '.join([*tables, 'boxes.png'])}")
