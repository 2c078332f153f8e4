"""`tumoar app`: begin cases, watch them and review results in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tumoar.cli.review import Browser, Port, announce


def app(
    folder: Annotated[Path, typer.Argument(help="The work folder: cases and their results.")] = Path(
        "tumoar-cases"
    ),
    images: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Folder from which images and results may be chosen.", show_default=False
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a case (default: all).")] = None,
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Begin cases in the browser, watch them, and review their results."""
    from tumoar.web.app import serve_work

    serve_work(
        folder, images or [], port, lambda address: announce(address, browser=browser), threads=threads
    )
