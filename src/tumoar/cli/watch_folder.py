"""`tumoar watch`: segment DICOM studies as they arrive in a folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.cli.stop import end_when_stopped
from tumoar.vocabulary.errors import CohortError, UsageError, printable

if TYPE_CHECKING:
    from tumoar.cohort.subjects import Subject
    from tumoar.cohort.supervise import Outcome

QUIET = 60.0


def watch(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="Folder with one subfolder per study.", show_default=False)
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FLAGS",
            help="After --: flags for `tumoar segment`, such as --rtstruct.",
            show_default=False,
        ),
    ] = None,
    quiet_for: Annotated[
        float, typer.Option(min=0, max=86400, help="Seconds without change after which a study is complete.")
    ] = QUIET,
    once: Annotated[
        bool, typer.Option("--once", help="End when all studies that are there have been dealt with.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Try studies that failed once more.")] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Only show which result belongs to which subfolder.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads per study.")] = 1,
    max_memory: Annotated[float, typer.Option(min=0.1, max=1e5, help="Memory limit per study, GB.")] = 4.0,
    timeout: Annotated[float, typer.Option(min=0.01, max=1e6, help="Time limit per study, minutes.")] = 240.0,
) -> None:
    """Watch a folder, and segment each DICOM study in it when it is complete."""
    from tumoar.cli.cohort import parse_flags
    from tumoar.cohort.incoming import Watched, find_studies, list_studies, watch_folder
    from tumoar.cohort.plan import Limits, Order, digest_flags
    from tumoar.cohort.tree import begin_tree
    from tumoar.io.files import absolute
    from tumoar.io.lock import lock_output

    for name, value in (("--quiet-for", quiet_for), ("--max-memory", max_memory), ("--timeout", timeout)):
        if not math.isfinite(value):
            raise UsageError("B55", f"{name} is not a number", found=value)
    source, output = absolute(source), absolute(output)
    if output.resolve().is_relative_to(source.resolve()) or source.resolve().is_relative_to(output.resolve()):
        raise UsageError("watch", "one folder is inside the other", do="give two separate folders")
    extra = flags or []
    tumor, files, table = parse_flags(extra)
    order = Order(
        out=str(output),
        flags=tuple(extra),
        folder=str(Path.cwd()),
        digest=digest_flags(extra, files),
        limits=Limits(timeout, max_memory, threads),
    )
    find_studies(source)
    if listing:
        for folder, name, state in list_studies(source, order):
            typer.echo(f"{name}  {state:8}  {printable(folder)}")
        return
    watched = Watched(source, quiet_for, tumor, table, once, again)
    failed = count = 0
    begin_tree(order)
    with lock_output(Path(order.out) / "watch"):
        end_when_stopped("stopped; run the same command to continue", once=True)
        typer.echo(f"watching; a study is complete when it has not changed for {quiet_for:g} s", err=True)
        for subject, outcome in watch_folder(watched, order):
            count, failed = count + 1, failed + (outcome.state == "failed")
            typer.echo(describe(subject, outcome), err=True)
    if failed:
        raise CohortError("watch", f"{failed} of {count} studies were set aside", do="see the folder logs")


def describe(subject: Subject, outcome: Outcome) -> str:
    """One line on a study that was dealt with."""
    used = "; ".join(note.sentence for note in subject.notes)
    if outcome.state == "failed":
        return f"{subject.name} set aside: {outcome.reason}"
    return f"{subject.name} {outcome.state} in {outcome.seconds:.0f} s: {used}"
