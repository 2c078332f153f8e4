"""`tumoar inspect`: what each image is, and what is wrong with it, before any work is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.errors import TumoarError, UnreadableFileError

if TYPE_CHECKING:
    from tumoar.image import Image


class UseForm(StrEnum):
    """Which of two positions in one header to believe."""

    s = "s"
    q = "q"


def inspect(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Images, or folders searched for *.nii and *.nii.gz.", show_default=False),
    ],
    use_form: Annotated[
        UseForm | None, typer.Option(help="Believe the sform or the qform where the two differ.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """Show what each image is and what is wrong with it."""
    findings = [examine(path, name, use_form) for path, name in _images(paths)]
    (_print_json if json else _print_table)(findings)
    refusals = [finding.refusal for finding in findings if finding.refusal is not None]
    for refusal in refusals:
        typer.echo(str(refusal), err=True)
    if refusals:
        raise typer.Exit(refusals[0].exit_code)


@dataclass(frozen=True)
class Finding:
    """One image: facts as far as it could be read, notes for a reviewer, and why it was refused."""

    name: str
    facts: Facts | None = None
    notes: tuple[str, ...] = ()
    refusal: TumoarError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Facts:
    """What an image is."""

    shape: tuple[int, int, int]
    spacing_mm: tuple[float, ...]
    axes: str
    type: str
    looks_like: str
    range: tuple[float, float] | None
    zeros: float


def examine(path: Path, name: str, use_form: UseForm | None = None) -> Finding:
    """Read one image and judge it by itself; `name` is what it is called in the table."""
    from tumoar.io.nifti import read_nifti
    from tumoar.quality import check_image, kind_of

    facts = None
    try:
        image = read_nifti(path, use_form=None if use_form is None else use_form.value)
        kind = kind_of(image.data)
        facts = _facts(image, kind)
        return Finding(name, facts, tuple(str(note) for note in check_image(image, "image", kind)))
    except TumoarError as refusal:
        return Finding(name, facts, refusal=refusal)


def _facts(image: Image, kind: str) -> Facts:
    import numpy as np

    from tumoar.orientation import orientation_of

    finite = image.data[np.isfinite(image.data)]
    return Facts(
        shape=image.grid.shape,
        spacing_mm=tuple(round(float(s), 6) for s in image.grid.spacing),
        axes=orientation_of(image.grid).codes,
        type=str(image.data.dtype),
        looks_like="label map" if kind == "labels" else kind,
        range=(finite.min().item(), finite.max().item()) if finite.size else None,
        zeros=round(1 - np.count_nonzero(image.data) / image.data.size, 4),
    )


def _images(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Every image with its name in the table; a folder gives all it holds, named from there on."""
    for path in paths:
        if not os.path.isdir(path):  # unlike the path's own method, no name makes it fail
            yield path, _printable(path.name)
            continue
        found = sorted(p for p in path.rglob("*") if p.name.endswith((".nii", ".nii.gz")) and p.is_file())
        if not found:
            raise UnreadableFileError(
                "B1", "no *.nii or *.nii.gz in this folder", file=path.resolve(), do="give a folder of images"
            )
        yield from ((p, _printable(str(p.relative_to(path)))) for p in found)


def _printable(name: str) -> str:
    from tumoar.io.nifti import printable

    return printable(name)


def _print_json(findings: list[Finding]) -> None:
    import json

    def row(finding: Finding) -> dict[str, Any]:
        refusal = finding.refusal
        refused = (
            None
            if refusal is None
            else {"exit_code": refusal.exit_code, "id": refusal.id, "text": str(refusal)}
        )
        facts = {} if finding.facts is None else asdict(finding.facts)
        return {"file": finding.name, **facts, "notes": finding.notes, "refused": refused}

    typer.echo(json.dumps([row(finding) for finding in findings], indent=2))


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("file", "voxels", "spacing mm", "axes", "type", "looks like", "values", "zeros", "notes"):
        table.add_column(heading, no_wrap=heading != "notes", overflow="fold")
    for finding in findings:
        notes = [*finding.notes, *(["refused: " + finding.refusal.what] if finding.refusal else [])]
        table.add_row(*(Text(cell) for cell in (finding.name, *_cells(finding.facts), "; ".join(notes))))
    # A table for a file or a pipe is not cut to the width of a terminal nobody looks at.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _cells(facts: Facts | None) -> list[str]:
    if facts is None:
        return [""] * 7
    return [
        "×".join(map(str, facts.shape)),
        "×".join(f"{s:.3g}" for s in facts.spacing_mm),
        facts.axes,
        facts.type,
        facts.looks_like,
        "none" if facts.range is None else "…".join(f"{v:g}" for v in facts.range),
        f"{100 * facts.zeros:.0f} %",
    ]
