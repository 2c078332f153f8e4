"""`tumoar model`: show and check model files, import other atlases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.cli.strict import StrictCommand
from tumoar.vocabulary.errors import printable

if TYPE_CHECKING:
    from tumoar.io.store import Section
    from tumoar.model.atlas import Atlas

model = typer.Typer(
    name="model", help="Show, check and import model files.", no_args_is_help=True, rich_markup_mode=None
)

LONGEST = 10_000
"""Characters of a fact that are shown; the file is not trusted."""

ModelFile = Annotated[
    Path | None,
    typer.Argument(
        help="A model file (.npz), or `brain`; default: the default model in the package.", show_default=False
    ),
]


@model.command(cls=StrictCommand)
def info(path: ModelFile = None) -> None:
    """Show the contents of a model file, and what it was made of."""
    from tumoar.io.store import section_atlas

    sections, path = _load(path)
    for name, section in sections.items():
        for key, array in section.arrays.items():
            typer.echo(f"{name}/{key}: {'x'.join(map(str, array.shape)) or 'one'} {array.dtype}")
    if "atlas" in sections:
        _describe(section_atlas(sections, path))
    for name, section in sections.items():
        _show_provenance(section.card.get("provenance"), name)


@model.command(cls=StrictCommand)
def verify(path: ModelFile = None) -> None:
    """Check a model file: digest, sizes, contents, and a small trial fit."""
    from tumoar.io.models import require_working

    sections, path = _load(path)
    lacking = require_working(sections, path)
    typer.echo(f"valid: {', '.join(sections)}")
    if lacking:
        typer.echo(f"incomplete model: {', '.join(lacking)} missing (see `tumoar train combine`)")


@model.command(cls=StrictCommand)
def import_samseg(
    folder: Annotated[
        Path, typer.Argument(help="Folder with a SAMSEG atlas and its tables.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    mesh: Annotated[str, typer.Option(help="Mesh file in the folder.")] = "atlas_level2.txt.gz",
) -> None:
    """Import a SAMSEG atlas as a model with its own structures."""
    from tumoar.io.outputs import require_new_model
    from tumoar.io.samseg import import_samseg as read
    from tumoar.io.store import save_atlas

    require_new_model(output)
    atlas = read(folder, mesh)
    digest = save_atlas(output, atlas)
    _describe(atlas)
    _show_provenance(atlas.provenance, "atlas")
    typer.echo(f"written: {printable(output.name)}, SHA-256 {digest}")


def _load(path: Path | None) -> tuple[dict[str, Section], Path]:
    """The sections of a file, or of the files of a model in the package, and a file to name in refusals."""
    from importlib.resources import as_file, files

    from tumoar.io.models import SHIPPED
    from tumoar.io.store import load_sections

    name = "default" if path is None else str(path)
    if path is not None and name not in SHIPPED:
        return dict(load_sections(path)), path
    sections: dict[str, Section] = {}
    for part in SHIPPED[name]:
        with as_file(files("tumoar").joinpath("data", part)) as file:
            sections |= load_sections(file)
    return sections, Path(name)


def _describe(atlas: Atlas) -> None:
    low, high = atlas.box
    size = " x ".join(f"{n:.0f}" for n in high - low)
    typer.echo(
        f"atlas: {len(atlas.nodes)} nodes, {len(atlas.tetrahedra)} tetrahedra, {atlas.labels.K} labels, "
        f"{size} mm, stiffness {atlas.stiffness:g}"
    )
    typer.echo("labels: " + ", ".join(printable(s.name) for s in atlas.labels.structures))


def _show_provenance(provenance: object, section: str) -> None:
    """What a section was made of: command, subjects, version."""
    for key, value in provenance.items() if isinstance(provenance, Mapping) else ():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        text = printable(text[:LONGEST])
        typer.echo(f"{section}, {printable(str(key)[:LONGEST])}: {text}")
