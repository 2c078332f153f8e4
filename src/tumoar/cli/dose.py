"""`tumoar dose`: what every structure gets of a dose, against limits and references."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.errors import UnreadableFileError, UsageError

if TYPE_CHECKING:
    from tumoar.io.structures import Dosed
    from tumoar.limits import Limit, Verdict

KIND = "set of doses"
PICTURES = ("dvh.png", "dvh.svg")
SHOWN = ("volume_cm3", "mean_Gy", "D5_Gy", "D50_Gy", "D95_Gy", "D0.03cc_Gy")


def dose(
    structures: Annotated[Path, typer.Argument(help="A finished result, or an RTSTRUCT file.")],
    dose: Annotated[
        Path, typer.Option(metavar="FILE", help="RTDOSE, NIfTI or NRRD, in Gy.", show_default=False)
    ],
    reference: Annotated[
        Path | None, typer.Option(metavar="RS.dcm", help="Other outlines to compare with.")
    ] = None,
    limits: Annotated[Path | None, typer.Option(help="Limits, TOML, instead of the package's.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for tables and curves (default: into a result)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the doses that are there.")] = False,
) -> None:
    """Dose-volume histograms: D5, D50, D95, D0.03cc, mean; a traffic light of limits."""
    from tumoar.io.dose import dose_person, read_dose
    from tumoar.io.outputs import require_empty
    from tumoar.io.structures import dosed

    given = [path for path in (structures, dose, reference, limits) if path is not None]
    if output is not None:
        require_empty(output, given, overwrite=overwrite, kind=KIND)
    bounds = _limits(limits)
    image = read_dose(dose)
    person = dose_person(dose)
    ours = dosed(structures, image, person)
    theirs = dosed(reference, image, person) if reference is not None else []
    rows = [*_rows(ours, "result" if structures.is_dir() else "structures"), *_rows(theirs, "reference")]
    for row in rows:
        cells = "  ".join(f"{name} {row[name]}" for name in SHOWN)
        typer.echo(f"{row['name']:16} {row['from']:10} {cells}")
        if row["outside_percent"] > 1:
            typer.echo(
                f"note: {row['outside_percent']} % of {row['name']} lies outside the dose, counted as 0"
            )
    verdicts = _judged(bounds, ours)
    for verdict in verdicts:
        row = verdict.row()
        above = row["share_of_samples_above"]
        told = f", above it in {100 * above:.0f} % of the samples" if above != "" else ""
        value = f"{row['metric']} {row['value']} (limit {row['limit']})"
        typer.echo(f"{row['light']:5} {row['structure']:14} {value}{told}")
    if output is None and not structures.is_dir():
        return
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"dose.tsv": rows}
    if verdicts:
        tables["limits.tsv"] = [v.row() for v in verdicts]
    _write(output, structures, tables, ours, theirs, given, overwrite=overwrite)


def _limits(path: Path | None) -> tuple[Limit, ...]:
    from tumoar.limits import default_limits, parse_limits

    if path is None:
        return default_limits()
    try:
        with open(path, "rb") as file:
            return parse_limits(tomllib.load(file))
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read the limits", file=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("limits", "limits are not valid TOML", file=path) from error


def _rows(found: Sequence[Dosed], source: str) -> list[dict[str, Any]]:
    """Figures of every structure; with samples also the 90 % interval of D0.03cc and mean."""
    import numpy as np

    rows = []
    for item in found:
        row: dict[str, Any] = {"name": item.name, "from": source}
        row |= {k: round(v, 3) for k, v in item.found.dvh.figures().items()}
        samples = [s for s in item.found.samples if s.volume]
        for key, values in (
            ("mean", [s.mean for s in samples]),
            ("D5", [s.D(5) for s in samples]),
            ("D0.03cc", [s.D_cc(min(0.03, s.volume)) for s in samples]),
        ):
            low, high = np.quantile(values, [0.05, 0.95]) if values else ("", "")
            row |= {f"{key}_p05": low and round(float(low), 3), f"{key}_p95": high and round(float(high), 3)}
        rows.append(row)
    return rows


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the page, whose numbers are all finite."""
    return {k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def _judged(limits: Sequence[Limit], found: Sequence[Dosed]) -> list[Verdict]:
    from tumoar.limits import judge

    by_name = {item.name: item.found for item in found}
    return [
        judge(limit, by_name[limit.structure].dvh, by_name[limit.structure].samples)
        for limit in limits
        if limit.structure in by_name
    ]


def _write(
    folder: Path | None,
    result: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    ours: Sequence[Dosed],
    theirs: Sequence[Dosed],
    given: Sequence[Path],
    *,
    overwrite: bool,
) -> None:
    """Tables and curves into a folder of their own, or into the result, with its report."""
    from tumoar.io.files import absolute
    from tumoar.io.outputs import new_folder
    from tumoar.io.results import REPORT, added, write_table
    from tumoar.report import read_data, render
    from tumoar.report.dose import curve, picture

    there = [item for item in (*ours, *theirs) if item.found.dvh.volume]
    top = 1.03 * max((item.found.dvh.maximum for item in there), default=1.0)
    curves, references = (
        [curve(i.name, i.color, i.found, top) for i in side if i.found.dvh.volume] for side in (ours, theirs)
    )
    place = added(result) if folder is None else new_folder(folder, KIND, given, overwrite=overwrite)
    with place as work:
        for name, rows in tables.items():
            write_table(work / name, rows)
        picture([work / name for name in PICTURES], curves, references)
        if folder is None:
            page = read_data((result / REPORT).read_text(encoding="utf-8"))
            page |= {"dose": curves, "limits": [_shown(row) for row in tables.get("limits.tsv", ())]}
            (work / REPORT).write_text(render(page), encoding="utf-8")
    written = [*tables, *PICTURES, *([REPORT] if folder is None else [])]
    typer.echo(f"{absolute(folder or result).name}: {', '.join(written)}")
