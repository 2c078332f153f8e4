"""`tumoar inspect`: describe images and their problems."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.cli.images import OwnContrasts, UseForm, parse_images, read_images
from tumoar.vocabulary.errors import TumoarError, UnreadableFileError, UsageError, printable
from tumoar.vocabulary.notes import Note

if TYPE_CHECKING:
    from rich.table import Table

    from tumoar.geometry.image import Case, Image, Input
    from tumoar.io.nifti_header import Form
    from tumoar.preprocess.quality import Kind
    from tumoar.vocabulary.contrasts import Contrast

HEAD_LITERS = (0.7, 9.0)  # from a small brain alone to a head with its neck


def inspect(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Images, or folders searched for NIfTI files and DICOM series.", show_default=False
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE:CONTRAST", help="Image of one patient; all of them are also registered."),
    ] = None,
    use_form: Annotated[UseForm | None, typer.Option(help="Form to use if sform and qform differ.")] = None,
    contrasts: OwnContrasts = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Describe images and their problems."""
    from tumoar.io.contrasts import read_contrasts

    table = read_contrasts(contrasts)
    named = dict(parse_images(image or [], table))
    if not paths and not named:
        raise UsageError("images", "nothing to inspect", do="give images, folders or --image FILE:CONTRAST")
    form: Form | None = None if use_form is None else use_form.value
    findings = [examine(source) for source in (*_sources(paths or [], form), *_given(named.values(), form))]
    refusals = [finding.refusal for finding in findings if finding.refusal is not None]
    if not json:
        _print(_image_table(findings))
    case = None
    try:
        if image and not refusals:
            case = _bring_together(image, use_form, table)
            case = _with_order(case, quiet=json)
    except TumoarError as error:
        refusals.append(error)
    if json:
        _print_json(findings, case)
    elif case is not None:
        _print_case(case)
    for refusal in refusals:
        typer.echo(str(refusal), err=True)
    if refusals:
        raise typer.Exit(refusals[0].exit_code)


# ---- one image ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """Facts about an image."""

    shape: tuple[int, int, int]
    spacing_mm: tuple[float, ...]
    axes: str
    type: str
    looks_like: str
    range: tuple[float, float] | None
    zeros: float


@dataclass(frozen=True)
class Finding:
    """One image: facts if it could be read, notes, and the refusal if any."""

    name: str
    facts: Facts | None = None
    notes: tuple[Note, ...] = ()
    refusal: TumoarError | None = None
    series: Mapping[str, Any] = field(default_factory=dict)  # only of DICOM


@dataclass(frozen=True)
class Source:
    """An image that can be read, and its name in the table."""

    name: str
    read: Callable[[], Image]
    series: Mapping[str, Any] = field(default_factory=dict)


def examine(source: Source) -> Finding:
    """Read and check one image."""
    from tumoar.preprocess.quality import check_image, guess_kind

    facts = None
    try:
        image = source.read()
        kind = guess_kind(image.data)
        facts = _facts(image, "label map" if kind == "labels" else kind)
        notes = tuple(check_image(image, "image", kind))
        return Finding(source.name, _facts(image, _look(image, kind)), notes, series=source.series)
    except TumoarError as refusal:
        return Finding(source.name, facts, refusal=refusal, series=source.series)


def _facts(image: Image, looks_like: str) -> Facts:
    import numpy as np

    from tumoar.geometry.orientation import find_orientation

    is_finite = np.isfinite(image.data)
    finite = image.data if is_finite.all() else image.data[is_finite]
    return Facts(
        shape=image.grid.shape,
        spacing_mm=tuple(round(float(s), 6) for s in image.grid.spacing),
        axes=find_orientation(image.grid).codes,
        type=str(image.data.dtype),
        looks_like=looks_like,
        range=(finite.min().item(), finite.max().item()) if finite.size else None,
        zeros=round(1 - np.count_nonzero(image.data) / image.data.size, 4),
    )


def _look(image: Image, kind: Kind) -> str:
    """Kind of an image, and whether a head in it is skull-stripped."""
    if kind == "labels":
        return "label map"
    import numpy as np

    from tumoar.geometry.orientation import reorient
    from tumoar.preprocess.case import CT_BONE, CT_WINDOW
    from tumoar.preprocess.register import FINE, prepare_image
    from tumoar.preprocess.skull import measure_skull

    window, bone = (CT_WINDOW, CT_BONE) if kind == "CT" else (None, None)
    prepared = prepare_image(reorient(image)[0], window)
    if not HEAD_LITERS[0] <= np.count_nonzero(prepared.is_head) * FINE**3 / 1e6 <= HEAD_LITERS[1]:
        return kind
    values = np.asarray(prepared.levels[FINE].data, np.float32)
    evidence = measure_skull(values, prepared.valid, prepared.is_head, FINE, bone)
    return f"{kind}, {'skull-stripped' if evidence.is_stripped else 'whole head'}"


def _given(paths: Iterable[Path], use_form: Form | None) -> Iterator[Source]:
    """Images given by path only."""
    from tumoar.io.images import read_image

    for path in paths:
        yield Source(printable(path.name), partial(read_image, path, use_form=use_form))


def _sources(paths: Iterable[Path], use_form: Form | None) -> Iterator[Source]:
    """All images with their names in the table; those of a folder are named relative to it."""
    from tumoar.io.images import read_image

    for path in paths:
        if not os.path.isdir(path):  # unlike Path.is_dir, never raises
            yield from _given([path], use_form)
            continue
        found = sorted(p for p in path.rglob("*") if p.name.endswith((".nii", ".nii.gz")) and p.is_file())
        series = list(_series(path))
        if not found and not series:
            raise UnreadableFileError(
                "B1",
                "neither NIfTI files nor a DICOM series in this folder",
                file=os.path.realpath(path),
                do="give a folder of images",
            )
        for p in found:
            yield Source(printable(str(p.relative_to(path))), partial(read_image, p, use_form=use_form))
        yield from series


def _series(folder: Path) -> Iterator[Source]:
    """Series of a folder; frames of reference are named by letters."""
    from tumoar.io.dicom import find_series
    from tumoar.io.images import read_whole

    frames: dict[str, str] = {}
    for number, series in enumerate(find_series(folder), 1):
        letter = "" if series.frame is None else frames.setdefault(series.frame, chr(65 + len(frames) % 26))
        about = {
            "contrast_guess": series.guess.contrast,
            "confidence": round(series.guess.confidence, 2),
            "frame_of_reference": letter,
        }
        yield Source(f"#{number} {series.name}", partial(read_whole, series), about)


def _image_table(findings: list[Finding]) -> Table:
    rows = []
    for finding in findings:
        notes = [*map(str, finding.notes), *(["refused: " + finding.refusal.what] if finding.refusal else [])]
        rows.append([finding.name, *_cells(finding.facts), *_series_cells(finding.series), "; ".join(notes)])
    headings = ["file", "voxels", "spacing mm", "axes", "type", "looks like", "values", "zeros"]
    headings += ["contrast (guess)", "frame", "notes"]
    if not any(finding.series for finding in findings):
        headings, rows = [*headings[:8], "notes"], [[*row[:8], row[-1]] for row in rows]
    return _table(headings, rows)


def _series_cells(series: Mapping[str, Any]) -> list[str]:
    if not series:
        return ["", ""]
    guess = f"{series['contrast_guess']} {100 * series['confidence']:.0f} %"
    return [guess, series["frame_of_reference"]]


def _cells(facts: Facts | None) -> list[str]:
    if facts is None:
        return [""] * 7
    return [
        _by(facts.shape),
        _by(f"{s:.3g}" for s in facts.spacing_mm),
        facts.axes,
        facts.type,
        facts.looks_like,
        "none" if facts.range is None else "…".join(f"{v:g}" for v in facts.range),
        f"{100 * facts.zeros:.0f} %",
    ]


# ---- all images of a patient -------------------------------------------------------------------------------


def _bring_together(
    given: list[str], use_form: UseForm | None, contrasts: Mapping[str, Contrast] | None
) -> Case:
    from tumoar.preprocess.case import build_case

    return build_case(read_images(given, use_form, contrasts), contrasts=contrasts)


def _with_order(case: Case, *, quiet: bool) -> Case:
    """Check that images have their named contrasts: add notes, or refuse clear contradictions."""
    from dataclasses import replace

    from tumoar.app.pipeline import place
    from tumoar.cli.watch import Watch
    from tumoar.io.models import default_model
    from tumoar.vocabulary.errors import FitError

    if not any(contrast.darker for contrast in case.contrasts):
        return case
    try:
        with Watch(quiet=quiet) as watch:
            notes = place(case, default_model(), watch=lambda p: watch(p._replace(notes=()))).notes
    except FitError as refusal:
        notes = (Note(refusal.id, f"contrasts not checked: {refusal.what}"),)
    return replace(case, notes=(*case.notes, *notes))


def _print_case(case: Case) -> None:
    rows = []
    for item in case.inputs:
        moved, turned = _motion(item)
        figures = ", ".join(f"{name} {value:.3g}" for name, value in item.figures.items())
        rows.append([item.name, item.source, f"{moved:.1f}", f"{turned:.1f}", figures])
    _print(_table(["contrast", "file", "moved mm", "turned °", "registration"], rows))
    state = "skull-stripped" if case.skull_stripped else "whole head"
    typer.echo(f"case on {case.reference}: {_by(case.grid.shape)} voxels of 1 mm, {state}")
    for note in case.notes:
        typer.echo(f"note: {note}")


def _motion(item: Input) -> tuple[float, float]:
    """Translation (mm, at the center of the image) and rotation (degrees) of an input."""
    import numpy as np

    center = item.grid.world((np.array(item.grid.shape) - 1) / 2)
    R = item.to_reference[:3, :3]
    moved = R @ center + item.to_reference[:3, 3] - center
    cosine = np.clip((np.trace(R) - 1) / 2, -1, 1)
    return float(np.linalg.norm(moved)), float(np.degrees(np.arccos(cosine)))


# ---- printing ----------------------------------------------------------------------------------------------


def _print_json(findings: list[Finding], case: Case | None) -> None:
    import json

    images = [_row(finding) for finding in findings]
    typer.echo(json.dumps({"images": images, "case": None if case is None else _summary(case)}, indent=2))


def _row(finding: Finding) -> dict[str, Any]:
    refusal = finding.refusal
    told = (
        None if refusal is None else {"exit_code": refusal.exit_code, "id": refusal.id, "text": str(refusal)}
    )
    facts = {} if finding.facts is None else asdict(finding.facts)
    notes = [note.to_dict() for note in finding.notes]
    return {"file": finding.name, **facts, **finding.series, "notes": notes, "refused": told}


def _summary(case: Case) -> dict[str, Any]:
    inputs = []
    for item in case.inputs:
        moved, turned = _motion(item)
        inputs.append(
            {
                "contrast": item.name,
                "file": item.source,
                "moved_mm": moved,
                "turned_degrees": turned,
                "interpolated": item.is_interpolated,
                "registration": dict(item.figures),
            }
        )
    return {
        "reference": case.reference,
        "shape": case.grid.shape,
        "skull_stripped": case.skull_stripped,
        "inputs": inputs,
        "notes": [note.to_dict() for note in case.notes],
    }


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading != "notes", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    # Do not wrap tables for files and pipes at the width of a terminal.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _by(numbers: Iterable[object]) -> str:
    return "×".join(map(str, numbers))
