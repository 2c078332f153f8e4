"""`tumoar export`: write a finished result for a planning system, 3D Slicer or ITK-SNAP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.notes import Note, needs_review


def export(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Series for the contours, as a folder or FOLDER#2.", show_default=False
        ),
    ] = None,
    rtstruct: Annotated[bool, typer.Option("--rtstruct", help="Write contours (RTSTRUCT).")] = False,
    seg: Annotated[bool, typer.Option("--seg", help="Write voxels (DICOM-SEG).")] = False,
    slicer: Annotated[
        bool, typer.Option("--slicer", help="Write a segmentation and a color table for 3D Slicer.")
    ] = False,
    itksnap: Annotated[
        bool, typer.Option("--itksnap", help="Write label descriptions for ITK-SNAP.")
    ] = False,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Smooth the contours, keeping their areas.")
    ] = False,
    trust_headers: Annotated[
        bool,
        typer.Option("--trust-headers", help="Assume that the series shares the coordinates of the result."),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 13 if there are notes.")] = False,
) -> None:
    """Write RTSTRUCT or DICOM-SEG files on the slices of a series, or labels for other programs."""
    wants_dicom = rtstruct or seg
    if not wants_dicom and not slicer and not itksnap:
        raise UsageError(
            "export", "nothing to write", do="give one or more of --rtstruct, --seg, --slicer, --itksnap"
        )
    if wants_dicom and reference is None:
        raise UsageError(
            "export", "no series to draw on", do="give the folder of a DICOM series with --reference"
        )
    if reference is not None and not wants_dicom:
        raise UsageError("export", "--reference without --rtstruct or --seg", do="add one of them")
    from tumoar.io.files import absolute

    names: list[str] = []
    notes: list[Note] = []
    if reference is not None:
        from tumoar.io.images import series_at
        from tumoar.radiotherapy.export import export as run

        series = series_at(reference)
        names, notes = run(folder, series, rtstruct=rtstruct, seg=seg, smooth=smooth, trust=trust_headers)
    if slicer or itksnap:
        from tumoar.radiotherapy.viewers import export_labels

        names += export_labels(folder, slicer=slicer, itksnap=itksnap)
    for name in names:
        typer.echo(f"{absolute(folder).name}/{name}: automatic, unreviewed")
    for note in notes:
        typer.echo(f"note: {note}")
    if strict and needs_review(notes):
        raise typer.Exit(13)
