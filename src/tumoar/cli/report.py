"""`tumoar report`: render the report of a finished result again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
) -> None:
    """Render the report of a finished result again, from the data in its page."""
    from tumoar.io.files import absolute
    from tumoar.report import read_page, render
    from tumoar.result.folder import REPORT, add_files, read_manifest

    manifest = read_manifest(folder)
    page = render(read_page(folder / REPORT))
    with add_files(folder, manifest) as work:
        (work / REPORT).write_text(page, encoding="utf-8")
    typer.echo(f"{absolute(folder).name}/{REPORT}")
