"""The options of `tumoar segment`, as a table: one field each, with its type, help and default."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tumoar.cli.images import OwnContrasts, UseForm

LARGEST_SPECK = 10.0  # cm³


class Prior(StrEnum):
    """Which prior on the shape of tumors."""

    crbm = "crbm"
    mrf = "mrf"


def _file(contrast: str) -> Any:
    return typer.Option(metavar="FILE", help=f"The {contrast}: NIfTI or DICOM folder.", show_default=False)


@dataclass(frozen=True)
class Options:
    """What the command was given."""

    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", show_default=False)]
    t1: Annotated[Path | None, _file("T1")] = None
    t1c: Annotated[Path | None, _file("contrast-enhanced T1")] = None
    t2: Annotated[Path | None, _file("T2")] = None
    flair: Annotated[Path | None, _file("FLAIR")] = None
    dir: Annotated[Path | None, _file("double inversion recovery")] = None
    ct: Annotated[Path | None, _file("CT")] = None
    image: Annotated[
        list[str] | None, typer.Option(metavar="FILE:CONTRAST", help="Any image; `other` if unknown.")
    ] = None
    contrasts: OwnContrasts = None
    flair2: Annotated[
        bool, typer.Option("--flair2", help="Use the product of FLAIR and T2 in place of both.")
    ] = False
    reference: Annotated[
        str | None, typer.Option(help="Contrast whose grid the result has (default: CT, else T1c).")
    ] = None
    no_register: Annotated[bool, typer.Option("--no-register", help="Trust the headers.")] = False
    stripped: Annotated[
        bool | None,
        typer.Option("--skull-stripped/--whole-head", help="Instead of what the images show."),
    ] = None
    trust_contrasts: Annotated[
        bool, typer.Option("--trust-contrasts", help="Only note images that look like another contrast.")
    ] = False
    structures: Annotated[
        str | None, typer.Option(help="Only these, by TG-263 name, separated by commas.")
    ] = None
    no_tumor: Annotated[bool, typer.Option("--no-tumor", help="Organs alone.")] = False
    exclude: Annotated[Path | None, typer.Option(help="Mask of voxels that take no part.")] = None
    fix_tumor: Annotated[
        Path | None, typer.Option(help="Mask of the tumor: 1 whole tumor; with values above 1 core too.")
    ] = None
    samples: Annotated[int | None, typer.Option(help="Samples to vote (default 50).")] = None
    burn_in: Annotated[int | None, typer.Option(help="Sweeps before them (default 200).")] = None
    chains: Annotated[int | None, typer.Option(help="Independent chains (default 1).")] = None
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0
    prior: Annotated[Prior | None, typer.Option(help="Prior on tumor shape (default crbm).")] = None
    fast: Annotated[bool, typer.Option("--fast", help="A first look, and marked as such.")] = False
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Again with every subset of the contrasts, as a table.")
    ] = False
    min_volume: Annotated[
        float, typer.Option(min=0, max=LARGEST_SPECK, help="Remove parts of a structure below this, cm³.")
    ] = 0.0
    save_samples: Annotated[
        bool, typer.Option("--save-samples", help="Write every sample as a label map.")
    ] = False
    keep_face: Annotated[
        bool, typer.Option("--keep-face", help="Whole images in the report, with the patient's face.")
    ] = False
    margins: Annotated[
        str | None, typer.Option(metavar="ctv=20,ptv=3", help="Also targets: GTV grown in the brain, mm.")
    ] = None
    rtstruct: Annotated[
        bool, typer.Option("--rtstruct", help="Also contours, on the slices of a DICOM input.")
    ] = False
    seg: Annotated[bool, typer.Option("--seg", help="Also DICOM-SEG, on the voxels of a DICOM input.")] = (
        False
    )
    model: Annotated[Path | None, typer.Option(help="Another model file (see `tumoar train combine`).")] = (
        None
    )
    config: Annotated[Path | None, typer.Option(help="Settings, TOML.")] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all).")] = None
    max_memory: Annotated[float | None, typer.Option(min=0.1, help="GB; refuse what needs more.")] = None
    use_form: Annotated[UseForm | None, typer.Option(help="Which form where sform and qform differ.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the result that is there.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False
    json: Annotated[bool, typer.Option("--json", help="Events as JSON lines.")] = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit 13 if the result needs review.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only refusals.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every step.")] = False

    @classmethod
    def signature(cls) -> Signature:
        """The options as the parameters of a function, from which typer makes the command."""
        hints = get_type_hints(cls, include_extras=True)
        return Signature(
            [
                Parameter(f.name, Parameter.KEYWORD_ONLY, annotation=hints[f.name], default=_default(f))
                for f in fields(cls)
            ]
        )


def _default(field: Field[Any]) -> Any:
    return Parameter.empty if field.default is MISSING else field.default
