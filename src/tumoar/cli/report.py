"""`tumoar report`: render the report of a finished result again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="A finished result.", show_default=False)],
    case_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the case; '' removes it.", show_default=False)
    ] = None,
    case_date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Date of the case; '' removes it.")
    ] = None,
) -> None:
    """Render the report of a finished result again, from the data in its page, perhaps with another name."""
    from tumoar.io.files import absolute
    from tumoar.report import read_page, render
    from tumoar.result.folder import REPORT, add_files, read_manifest
    from tumoar.vocabulary.case_name import CaseName

    manifest = read_manifest(folder)
    given = CaseName(case_name or "", case_date or "")
    page = read_page(folder / REPORT)
    name, date = page.get("case", {}).get("name", ""), page.get("case", {}).get("date", "")
    page["case"] = {
        "name": name if case_name is None else given.name,
        "date": date if case_date is None else given.date,
    }
    with add_files(folder, manifest) as work:
        (work / REPORT).write_text(render(page), encoding="utf-8")
    typer.echo(f"{absolute(folder).name}/{REPORT}")
