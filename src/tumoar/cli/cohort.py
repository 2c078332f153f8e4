"""`tumoar cohort`: many patients, each in its own process, and a summary of all."""

from __future__ import annotations

import math
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.cli.stop import end_when_stopped
from tumoar.vocabulary.errors import CohortError, UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tumoar.cohort.engine import Scheduler
    from tumoar.cohort.plan import Order
    from tumoar.cohort.subjects import Subject
    from tumoar.vocabulary.contrasts import Contrast

OURS = (
    "t1", "t1c", "t2", "flair", "dir", "ct", "image", "threads", "max_memory", "resume",
    "overwrite", "dry_run", "json", "quiet", "verbose", "strict", "case_name", "case_date",
)  # fmt: skip
"""Flags of `segment` that a cohort sets itself, besides --output."""
NOWHERE = "-"
WHAT = {
    "whole": "has a result: skipped if images and flags are the same",
    "damaged": "has a damaged result: not run until its folder in results is removed",
}
"""Text in the plan for a subject with a result."""


SchedulerAddress = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a running Dask scheduler, such as tls://node1:8786."),
]
TlsCa = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate of the scheduler's CA, PEM.")]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="Client certificate, PEM.")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the client certificate, PEM.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure-scheduler",
        help="Allow tcp:// without TLS: anyone who can reach the scheduler can run programs as you.",
    ),
]


class Stage(StrEnum):
    """Stage of a cohort: subjects, or their summary."""

    participant = "participant"
    group = "group"


def cohort(
    source: Annotated[Path, typer.Argument(help="BIDS dataset, or list (CSV, TSV).", show_default=False)],
    output: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    stage: Annotated[
        Stage, typer.Argument(help="Segment subjects, or only write the summary.", show_default=False)
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="FLAGS", help="After --: flags for `tumoar segment`.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and exit.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Subjects in parallel (default: as memory and cores allow)."),
    ] = None,
    scheduler: SchedulerAddress = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure_scheduler: Insecure = False,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads per subject.")] = 1,
    max_memory: Annotated[float, typer.Option(min=0.1, max=1e5, help="Memory limit per subject, GB.")] = 4.0,
    timeout: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="Time limit per subject, minutes.")
    ] = 240.0,
    retries: Annotated[
        int, typer.Option(min=0, max=100, help="Further attempts after a temporary failure.")
    ] = 2,
    participant_label: Annotated[
        list[str] | None, typer.Option(help="Only this subject; may be repeated.", show_default=False)
    ] = None,
    session_label: Annotated[
        list[str] | None, typer.Option(help="Only this session; may be repeated.", show_default=False)
    ] = None,
    index: Annotated[
        int | None, typer.Option(help="Only the subject with this index in the plan, from 0.")
    ] = None,
    prefer: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY-VALUE", help="Prefer images with this BIDS entity."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Compute finished subjects again.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only refusals.")] = False,
) -> None:
    """Segment many patients; finished ones are skipped, interrupted ones continued."""
    from tumoar.cohort.plan import Limits, Order, check_contrasts, digest_flags, select

    for name, value in (("--max-memory", max_memory), ("--timeout", timeout)):
        if not math.isfinite(value):
            raise UsageError("B55", f"{name} is not a number", found=value)
    where = cluster(scheduler, tls_ca, tls_cert, tls_key, insecure_scheduler)
    extra = flags or []
    tumor, files, table = parse_flags(extra)
    if max(len(participant_label or []), len(session_label or [])) and index is not None:
        raise UsageError("B61", "--index cannot be combined with labels", do="give one of them")
    everybody = check_contrasts(find(source, prefer or [], table), tumor, table)
    chosen = select(everybody, participant_label or [], session_label or [], index)
    order = Order(
        out=str(output.absolute()),
        flags=tuple(extra),
        folder=str(Path.cwd()),
        digest=digest_flags(extra, files),
        raw=str(source.absolute()) if source.is_dir() else None,
        limits=Limits(timeout, max_memory, threads, retries),
        overwrite=overwrite,
    )
    if dry_run:
        for line in plan_lines(everybody, chosen, order, workers, scheduler):
            typer.echo(printable(line))
        return
    if stage is Stage.group:
        summarize(everybody, order, quiet)
        return
    end_when_stopped(
        "stopped; run the same command to continue", once=True
    )  # stopping subjects takes a moment
    failed = compute(chosen, order, workers, where, quiet)
    if len(chosen) == len(everybody):
        summarize(everybody, order, quiet)
    if failed:
        listed = ", ".join(failed[:5]) + (" …" if len(failed) > 5 else "")
        raise CohortError(
            "B61",
            f"{len(failed)} of {len(chosen)} failed",
            found=listed,
            do="see group.tsv and the folder logs",
        )


def find(source: Path, prefer: list[str], table: Mapping[str, Contrast] | None = None) -> list[Subject]:
    """Find all subjects of a dataset or a list."""
    from tumoar.cohort.listing import read_list
    from tumoar.cohort.subjects import find_subjects
    from tumoar.vocabulary.contrasts import default_contrasts

    if source.is_dir():
        return find_subjects(source, prefer, table)
    return read_list(source, list(table or default_contrasts()))


def parse_flags(flags: list[str]) -> tuple[bool, list[Path], dict[str, Contrast] | None]:
    """Check flags of `segment` before any subject runs.

    Returns whether tumor is requested, the files that flags name, and the table of contrasts if given.
    """
    from typer.main import get_command

    from tumoar.app.settings import resolve
    from tumoar.cli import app
    from tumoar.io.contrasts import read_contrasts

    command = get_command(app).commands["segment"]  # type: ignore[attr-defined]
    name = "tumoar segment"
    asked = command.make_context(name, list(flags), resilient_parsing=True).params  # without --output
    taken = [option for option in (*OURS, "output") if asked[option]]
    if taken:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in taken)
        raise UsageError("flags", f"flags for segment: {words} is set by the cohort", do="leave it out")
    got = command.make_context(name, ["--output", NOWHERE, *flags]).params
    changes = {"samples": got["samples"], "burn_in": got["burn_in"]}
    settings = resolve(
        got["config"],
        fast=got["fast"],
        method=got["method"],
        tumor=not got["no_tumor"],
        prior=got["prior"],
        gtv=got["gtv"],
        chains=got["chains"],
        gibbs=changes,
    )
    if got["model"] is not None:
        from tumoar.io.models import SHIPPED, find_model

        find_model(got["model"])
        got["model"] = str(got["model"]) if str(got["model"]) in SHIPPED else got["model"]
    files = [value for name, value in sorted(got.items()) if isinstance(value, Path) and name != "output"]
    for file in files:
        if not file.is_file():
            raise UsageError("flags", "flags for segment: no such file", file=file)
    return settings.tumor, files, read_contrasts(got["contrasts"], got["model"])


def plan_lines(
    everybody: list[Subject], chosen: list[Subject], order: Order, workers: int | None, scheduler: str | None
) -> list[str]:
    """Lines of the plan: subjects, images, existing results and problems."""
    from tumoar.cli.cohort_watch import columns
    from tumoar.cohort.plan import fitting_workers, has_checkpoints, state_of_result

    rows = [("index", "name", "contrasts", "plan")]
    new = bad = 0
    names = {subject.name for subject in chosen}
    for number, subject in enumerate(everybody):
        if subject.name not in names:
            continue
        if subject.problem:
            what, bad = subject.problem, bad + 1
        elif (there := state_of_result(subject, order)) == "damaged" or (
            there == "whole" and not order.overwrite
        ):
            what = WHAT[there]
        else:
            what, new = "continue" if has_checkpoints(subject, order) else "run", new + 1
        rows.append(
            (str(number), subject.name, " ".join(subject.images), "; ".join((what, *map(str, subject.notes))))
        )
    used = workers or fitting_workers(order.limits, max(1, new))
    where = f"scheduler {scheduler}" if scheduler else f"{used} in parallel on this machine"
    limits = order.limits
    return [
        *columns(rows),
        f"{new} to run, {len(chosen) - new - bad} with a result, {bad} that cannot be run; {where}, "
        f"each with {limits.threads} threads, {limits.gb:g} GB and {limits.minutes:g} min",
    ]


def compute(
    subjects: list[Subject], order: Order, workers: int | None, scheduler: Scheduler | None, quiet: bool
) -> list[str]:
    """Run subjects, here or on a cluster; return the names of failed ones."""
    from tumoar.cli.cohort_watch import CohortWatch
    from tumoar.cohort.plan import fitting_workers
    from tumoar.cohort.tree import begin_tree

    if scheduler is None:
        from tumoar.cohort.local import run_here

        begin_tree(order)
        count = min(workers or fitting_workers(order.limits, len(subjects)), len(subjects))
        with CohortWatch(len(subjects), count, quiet=quiet) as watch:
            if len(subjects) > 1:
                watch.say(f"{len(subjects)} subjects, {count} in parallel on this machine")
            for outcome in run_here(subjects, order, count, watch.tell):
                watch.add(outcome)
        return [o.name for o in watch.outcomes if o.state == "failed"]
    from tumoar.cohort.engine import connect, run

    with connect(scheduler) as client:
        begin_tree(order)
        slots = sum(client.nthreads().values())
        with CohortWatch(len(subjects), slots, quiet=quiet) as watch:
            watch.say(_welcome(len(subjects), slots, scheduler.address, client.dashboard_link))
            for outcome in run(client, subjects, order, watch.tell):
                watch.add(outcome)
    return [o.name for o in watch.outcomes if o.state == "failed"]


def cluster(
    address: str | None, ca: Path | None, cert: Path | None, key: Path | None, insecure: bool
) -> Scheduler | None:
    """Scheduler from the flags; TLS is required, and TLS files without a scheduler are refused."""
    if address is None:
        if ca or cert or key or insecure:
            raise UsageError("scheduler", "TLS flags without a scheduler", do="add --scheduler")
        return None
    from tumoar.cohort.engine import Scheduler, require_protection

    scheduler = Scheduler(address, ca, cert, key, insecure)
    require_protection(scheduler)
    return scheduler


def _welcome(subjects: int, slots: int, address: str, dashboard: str) -> str:
    from importlib.util import find_spec

    look = f"dashboard {dashboard}" if find_spec("bokeh") else "install bokeh for Dask's dashboard"
    waiting = "" if slots else " (no worker has joined yet)"
    return f"{subjects} subjects, {slots} in parallel on the scheduler {address}{waiting}; {look}"


def summarize(subjects: list[Subject], order: Order, quiet: bool) -> None:
    """Write the summary."""
    from tumoar.cohort.group import write_group
    from tumoar.cohort.tree import begin_tree

    begin_tree(order)
    counts = write_group(subjects, order)
    if not quiet:
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        typer.echo(f"{os.path.basename(order.out)}/group.html: {told}", err=True)
