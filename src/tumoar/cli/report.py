"""`tumoar report`: the page of a finished result, made again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
) -> None:
    """Make the report of a finished result again, from what its page holds."""
    from tumoar.io.results import MANIFEST, REPORT, read_manifest, replace_text
    from tumoar.report import read_data, render

    manifest = read_manifest(folder)
    page = render(read_data((folder / REPORT).read_text(encoding="utf-8")))
    replace_text(folder / REPORT, page)
    manifest["files"][REPORT] = hashlib.sha256(page.encode()).hexdigest()
    replace_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    typer.echo(f"{folder.name}/{REPORT}")
