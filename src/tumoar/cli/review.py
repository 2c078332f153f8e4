"""`tumoar review`: look at a result in the browser, correct and approve it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 (default: a free one).")]
Browser = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open the page, or only print its address.")
]


def review(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
    reference: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="DICOM series for the export of contours.", show_default=False),
    ] = None,
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Look at a result in the browser, correct it, sample again, approve and export it."""
    from tumoar.io.files import absolute
    from tumoar.web.app import serve_review

    serve_review(absolute(folder), reference, port, lambda address: announce(address, browser=browser))


def announce(address: str, *, browser: bool) -> None:
    """Print the address, and open it."""
    from tumoar.web.server import open_browser

    opened = browser and open_browser(address)
    typer.echo(f"{'opened in your browser' if opened else 'open in your browser'}: {address}")
    typer.echo("Only you can open it: it contains a secret. Ctrl-C ends the server; corrections are kept.")
