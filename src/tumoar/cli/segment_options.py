"""The options of `tumoar segment`: one field each, with type, help and default."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tumoar.cli.images import OwnContrasts, UseForm

LARGEST_SPECK = 10.0  # cm³


class Gtv(StrEnum):
    """What the gross tumor volume is."""

    auto = "auto"
    enhancing = "enhancing"
    flair = "flair"


class Prior(StrEnum):
    """Prior on tumor shape."""

    crbm = "crbm"
    mrf = "mrf"


class Method(StrEnum):
    """Which settings the algorithms have."""

    default = "default"
    paper = "paper"


def _file(contrast: str) -> Any:
    return typer.Option(metavar="FILE", help=f"{contrast}: NIfTI or DICOM folder.", show_default=False)


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", show_default=False)]
    t1: Annotated[Path | None, _file("T1")] = None
    t1c: Annotated[Path | None, _file("Contrast-enhanced T1")] = None
    t2: Annotated[Path | None, _file("T2")] = None
    flair: Annotated[Path | None, _file("FLAIR")] = None
    dir: Annotated[Path | None, _file("Double inversion recovery")] = None
    ct: Annotated[Path | None, _file("CT")] = None
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE:CONTRAST", help="Any other image; CONTRAST is `other` if unknown."),
    ] = None
    contrasts: OwnContrasts = None
    flair2: Annotated[
        bool, typer.Option("--flair2", help="Use the product of FLAIR and T2 instead of both.")
    ] = False
    reference: Annotated[
        str | None, typer.Option(help="Contrast that defines the output grid (default: CT, else T1c).")
    ] = None
    no_register: Annotated[bool, typer.Option("--no-register", help="Trust the headers.")] = False
    stripped: Annotated[
        bool | None,
        typer.Option("--skull-stripped/--whole-head", help="Override detection from the images."),
    ] = None
    trust_contrasts: Annotated[
        bool,
        typer.Option(
            "--trust-contrasts", help="Note, but do not refuse, images that look like another contrast."
        ),
    ] = False
    structures: Annotated[
        str | None, typer.Option(help="Only these structures: TG-263 names, separated by commas.")
    ] = None
    no_tumor: Annotated[bool, typer.Option("--no-tumor", help="Segment organs only.")] = False
    gtv: Annotated[
        Gtv | None,
        typer.Option(
            help="Enhancing core, or whole T2/FLAIR abnormality; auto: the latter if nothing enhances."
        ),
    ] = None
    postop: Annotated[
        bool, typer.Option("--postop", help="After surgery: also outline the resection cavity.")
    ] = False
    exclude: Annotated[Path | None, typer.Option(help="Mask of voxels to ignore.")] = None
    fix_tumor: Annotated[
        Path | None, typer.Option(help="Mask of the tumor: 1 is whole tumor, higher values are core.")
    ] = None
    samples: Annotated[int | None, typer.Option(help="Number of samples (default 50).")] = None
    burn_in: Annotated[int | None, typer.Option(help="Sweeps before the samples (default 200).")] = None
    chains: Annotated[int | None, typer.Option(help="Number of independent chains (default 1).")] = None
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0
    prior: Annotated[Prior | None, typer.Option(help="Prior on tumor shape (default crbm).")] = None
    method: Annotated[
        Method | None,
        typer.Option(help="Default settings, or the paper's method to the letter; the result is marked."),
    ] = None
    fast: Annotated[bool, typer.Option("--fast", help="Quick preview; the result is marked as fast.")] = False
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Repeat with every subset of the contrasts; write a table.")
    ] = False
    min_volume: Annotated[
        float,
        typer.Option(min=0, max=LARGEST_SPECK, help="Remove parts of a structure smaller than this, cm³."),
    ] = 0.0
    save_samples: Annotated[
        bool, typer.Option("--save-samples", help="Write each sample as a label map.")
    ] = False
    keep_face: Annotated[
        bool, typer.Option("--keep-face", help="Keep the patient's face in the images of the report.")
    ] = False
    case_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the case in the report; never read from files."),
    ] = None
    case_date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Date of the case in the report.")
    ] = None
    margins: Annotated[
        str | None,
        typer.Option(
            metavar="ctv=15,ptv=3", help="Add CTV and PTV: margins around the GTV in mm, or `estro-eano`."
        ),
    ] = None
    rtstruct: Annotated[bool, typer.Option("--rtstruct", help="Also write contours on a DICOM input.")] = (
        False
    )
    seg: Annotated[bool, typer.Option("--seg", help="Also write DICOM-SEG on a DICOM input.")] = False
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model file (see `tumoar train combine`), or `brain`: all structures of the brain."
        ),
    ] = None
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration of intervals (see `tumoar calibrate`).")
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all).")] = None
    max_memory: Annotated[
        float | None, typer.Option(min=0.1, help="Memory limit, GB; larger cases are refused.")
    ] = None
    use_form: Annotated[UseForm | None, typer.Option(help="Form to use if sform and qform differ.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run all checks, write nothing.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 13 if the result needs review.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only refusals.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for every step.")] = False

    @classmethod
    def signature(cls) -> Signature:
        """The options as parameters of a function, from which typer builds the command."""
        hints = get_type_hints(cls, include_extras=True)
        return Signature(
            [
                Parameter(f.name, Parameter.KEYWORD_ONLY, annotation=hints[f.name], default=_default(f))
                for f in fields(cls)
            ]
        )


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
