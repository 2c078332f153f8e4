"""`tumoar commission`: check an installation against known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tumoar.vocabulary.errors import FitError, UsageError


def commission(
    output: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Own cases: DIR/NAME/result and DIR/NAME/reference.nii.gz or reference.dcm.",
            show_default=False,
        ),
    ] = None,
    tolerances: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with tolerances of your own.", show_default=False),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=1,3", help="Values of a structure in the reference label maps."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=TG263", help="Name of a structure in the reference contours."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing report.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only refusals.")] = False,
) -> None:
    """Check an installation against known answers, and write an acceptance report."""
    if cases is None and (values or names):
        raise UsageError("cases", "--values or --map without --cases", do="add --cases")
    from tumoar.app.commission import Order, commission, find_cases
    from tumoar.cli.evaluate import parse_values
    from tumoar.cli.watch import Watch
    from tumoar.io.files import absolute
    from tumoar.radiotherapy.agreement import names_of
    from tumoar.vocabulary.aliases import parse_map

    known = names_of(find_cases(cases)[0].result) if cases is not None else []
    order = Order(
        tolerances=tolerances,
        cases=cases,
        meaning=parse_values(values or [], known),
        given=parse_map(names or [], known),
        overwrite=overwrite,
    )
    with Watch(quiet=quiet) as watch:
        checks = commission(absolute(output), order, watch)
        failed = [check for check in checks if not check.passed]
        passed = len(checks) - len(failed)
        watch.say(f"{passed} of {len(checks)} checks passed: {absolute(output).name}/acceptance.html")
    if failed:
        first = failed[0].finding
        raise FitError(
            "acceptance",
            f"{len(failed)} of {len(checks)} checks failed",
            found=f"{first.structure}: {first.what} {first.value:g}, tolerance {failed[0].tolerance.text}",
            do="see acceptance.html",
        )
