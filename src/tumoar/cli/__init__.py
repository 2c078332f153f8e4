"""The command line: one module per group of commands, with heavy imports inside the commands.

Only `main` turns a refusal into a sentence on standard error and an exit code.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from tumoar.cli.app import app as browser_app
from tumoar.cli.calibrate import calibrate
from tumoar.cli.cohort import cohort
from tumoar.cli.commission import commission
from tumoar.cli.demo import demo
from tumoar.cli.doctor import doctor
from tumoar.cli.dose import dose
from tumoar.cli.evaluate import evaluate
from tumoar.cli.export import export
from tumoar.cli.inspect import inspect
from tumoar.cli.model import model
from tumoar.cli.report import report
from tumoar.cli.review import review
from tumoar.cli.segment import segment
from tumoar.cli.simulate import simulate
from tumoar.cli.stop import end_when_stopped, find_stop
from tumoar.cli.streams import disk_refusal, leave, leave_unread, prepare_streams
from tumoar.cli.strict import StrictCommand
from tumoar.cli.train import atlas, prepare
from tumoar.cli.train_location import location
from tumoar.cli.train_shape import combine, shape
from tumoar.cli.watch_folder import watch
from tumoar.version import __version__
from tumoar.vocabulary.errors import FitError, ResourceError, TumoarError

app = typer.Typer(
    name="tumoar",
    help="Tumors and organs at risk from any scan. For research; not a medical device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # panels and colors would double the time of `--help`
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands = (
    demo,
    segment,
    inspect,
    review,
    export,
    dose,
    report,
    evaluate,
    calibrate,
    cohort,
    watch,
    simulate,
    doctor,
    commission,
)
for command in commands:
    app.command(cls=StrictCommand)(command)
app.command(name="app", cls=StrictCommand)(browser_app)
app.add_typer(model)

train = typer.Typer(
    name="train", help="Train the model's parts from label maps.", no_args_is_help=True, rich_markup_mode=None
)
for part in (prepare, atlas, shape, location, combine):
    train.command(cls=StrictCommand)(part)
app.add_typer(train)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tumoar {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code: 0, the code of a refusal, or 1 for an internal error."""
    prepare_streams()
    # Checkpoints are kept, nothing is published.
    end_when_stopped("stopped; continue a run with --resume, a training with the same command")
    try:
        leave(_run(arguments))
    except BrokenPipeError:
        leave_unread()


def _run(arguments: Sequence[str] | None) -> int | str | None:
    """Exit code of one command; refusals and errors are printed to standard error."""
    try:
        app(args=arguments)
    except SystemExit as end:
        return end.code
    except BrokenPipeError:
        raise
    except TumoarError as refusal:
        return _refuse(refusal)
    except MemoryError:
        return _refuse(
            ResourceError("memory", "not enough memory", do="close other programs, or use a larger machine")
        )
    except Exception as fault:
        stop = find_stop(fault)
        if stop is not None:
            return stop.code
        if os.environ.get("TUMOAR_DEBUG"):
            raise
        disk = disk_refusal(fault)
        if disk is not None:
            return _refuse(disk)
        if type(fault).__name__ == "LinAlgError":
            return _refuse(
                FitError("numbers", "the model cannot be fitted to these images", do="see `tumoar inspect`")
            )
        # The message may contain a path or header text, and so a patient's name: show only type and location.
        place = traceback.extract_tb(fault.__traceback__)[-1]
        typer.echo(
            f"E1-fault internal error: {type(fault).__name__} in {place.name}, line {place.lineno} of "
            f"{os.path.basename(place.filename)} | do: report it; TUMOAR_DEBUG=1 shows the traceback",
            err=True,
        )
        return TumoarError.exit_code
    return 0


def _refuse(refusal: TumoarError) -> int:
    typer.echo(str(refusal), err=True)
    return refusal.exit_code
