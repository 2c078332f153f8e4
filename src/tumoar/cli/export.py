"""`tumoar export`: write a finished result as DICOM for a planning system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.notes import needs_review


def export(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
    reference: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Series for the contours, as a folder or FOLDER#2.", show_default=False
        ),
    ],
    rtstruct: Annotated[bool, typer.Option("--rtstruct", help="Write contours (RTSTRUCT).")] = False,
    seg: Annotated[bool, typer.Option("--seg", help="Write voxels (DICOM-SEG).")] = False,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Smooth the contours, keeping their areas.")
    ] = False,
    trust_headers: Annotated[
        bool,
        typer.Option("--trust-headers", help="Assume that the series shares the coordinates of the result."),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 13 if there are notes.")] = False,
) -> None:
    """Write RTSTRUCT or DICOM-SEG files on the slices of a series."""
    if not rtstruct and not seg:
        raise UsageError("export", "nothing to write", do="give --rtstruct, --seg or both")
    from tumoar.io.files import absolute
    from tumoar.io.images import series_at
    from tumoar.radiotherapy.export import export as run

    series = series_at(reference)
    names, notes = run(folder, series, rtstruct=rtstruct, seg=seg, smooth=smooth, trust=trust_headers)
    for name in names:
        typer.echo(f"{absolute(folder).name}/{name}: automatic, unreviewed")
    for note in notes:
        typer.echo(f"note: {note}")
    if strict and needs_review(notes):
        raise typer.Exit(13)
