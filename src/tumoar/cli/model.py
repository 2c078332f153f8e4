"""`tumoar model`: show and check model files, import other atlases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.cli.strict import StrictCommand
from tumoar.vocabulary.errors import printable

if TYPE_CHECKING:
    from tumoar.model.atlas import Atlas

model = typer.Typer(
    name="model", help="Show, check and import model files.", no_args_is_help=True, rich_markup_mode=None
)

ModelFile = Annotated[Path, typer.Argument(help="A model file (.npz).", show_default=False)]


@model.command(cls=StrictCommand)
def info(path: ModelFile) -> None:
    """Show the contents of a model file."""
    from tumoar.io.store import load_sections, section_atlas

    sections = load_sections(path)
    for name, section in sections.items():
        for key, array in section.arrays.items():
            typer.echo(f"{name}/{key}: {'x'.join(map(str, array.shape)) or 'one'} {array.dtype}")
    if "atlas" in sections:
        _describe(section_atlas(sections, path))


@model.command(cls=StrictCommand)
def verify(path: ModelFile) -> None:
    """Check a model file: digest, sizes, contents, and a small trial fit."""
    from tumoar.io.models import require_working
    from tumoar.io.store import load_sections

    sections = load_sections(path)
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
    typer.echo(f"written: {printable(output.name)}, SHA-256 {digest}")


def _describe(atlas: Atlas) -> None:
    low, high = atlas.box
    size = " x ".join(f"{n:.0f}" for n in high - low)
    typer.echo(
        f"atlas: {len(atlas.nodes)} nodes, {len(atlas.tetrahedra)} tetrahedra, {atlas.labels.K} labels, "
        f"{size} mm, stiffness {atlas.stiffness:g}"
    )
    typer.echo("labels: " + ", ".join(printable(s.name) for s in atlas.labels.structures))
    for key, value in atlas.provenance.items():
        text = printable(str(value))
        typer.echo(f"{printable(str(key))}: {text if len(text) <= 200 else text[:197] + '...'}")
