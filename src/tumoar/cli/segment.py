"""`tumoar segment`: from scans to labels, volumes and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tumoar.cli.images import parse_images
from tumoar.cli.segment_options import Options

if TYPE_CHECKING:
    from tumoar.app.request import Request

FILES = ("t1", "t1c", "t2", "flair", "dir", "ct")
NEEDS_REVIEW = 13


def segment(**words: Any) -> None:
    """Segment tumor and organs at risk from any subset of T1, T1c, T2, FLAIR, DIR, CT and other images."""
    options = Options(**words)
    request = to_request(options)

    from tumoar.app.segment import check
    from tumoar.app.segment import segment as run
    from tumoar.cli.watch import Watch

    with Watch(as_json=options.json, quiet=options.quiet, verbose=options.verbose) as watch:
        if options.dry_run:
            check(request, watch)
            watch.say("dry run: all checks passed, nothing was written")
            return
        outcome = run(request, watch)
    if options.strict and outcome.needs_review:
        raise typer.Exit(NEEDS_REVIEW)


segment.__signature__ = Options.signature()  # type: ignore[attr-defined]


def to_request(options: Options) -> Request:
    """Convert the options of the command to a request."""
    from dataclasses import fields

    from tumoar.app.request import Request, collect_images
    from tumoar.io.contrasts import read_contrasts

    table = read_contrasts(options.contrasts, options.model)
    files = [(name, path) for name in FILES if (path := getattr(options, name)) is not None]
    alike = {f.name for f in fields(Request)} & {f.name for f in fields(options)}
    values = {name: getattr(options, name) for name in alike} | {
        "images": collect_images([*files, *parse_images(options.image or [], table)], table),
        "register": not options.no_register,
        "skull_stripped": options.stripped,
        "structures": tuple(n.strip() for n in options.structures.split(",")) if options.structures else (),
        "tumor": not options.no_tumor,
        "prior": None if options.prior is None else options.prior.value,
        "gtv": None if options.gtv is None else options.gtv.value,
        "method": None if options.method is None else options.method.value,
        "use_form": None if options.use_form is None else options.use_form.value,
    }
    return Request(**values)
