"""`tumoar segment`: from scans to labels, volumes and a report."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.cli.images import OwnContrasts, UseForm, parse_images
from tumoar.cli.settings import resolve
from tumoar.io.files import absolute
from tumoar.vocabulary.errors import TumoarError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tumoar.cli.run import Request
    from tumoar.cli.watch import Watch
    from tumoar.geometry.image import Case, Image
    from tumoar.model.generative import Model
    from tumoar.radiotherapy.margins import Margins
    from tumoar.result.segmentation import Segmentation
    from tumoar.vocabulary.contrasts import Contrast

NEEDS_REVIEW = 13
LARGEST_SPECK = 10.0  # cm³


class Prior(StrEnum):
    """Which prior on the shape of tumors."""

    crbm = "crbm"
    mrf = "mrf"


def _file(contrast: str) -> Any:
    return typer.Option(metavar="FILE", help=f"The {contrast}: NIfTI or DICOM folder.", show_default=False)


def segment(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", show_default=False)],
    t1: Annotated[Path | None, _file("T1")] = None,
    t1c: Annotated[Path | None, _file("contrast-enhanced T1")] = None,
    t2: Annotated[Path | None, _file("T2")] = None,
    flair: Annotated[Path | None, _file("FLAIR")] = None,
    dir: Annotated[Path | None, _file("double inversion recovery")] = None,
    ct: Annotated[Path | None, _file("CT")] = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="FILE:CONTRAST", help="Any image; `other` if unknown.")
    ] = None,
    contrasts: OwnContrasts = None,
    flair2: Annotated[
        bool, typer.Option("--flair2", help="Use the product of FLAIR and T2 in place of both.")
    ] = False,
    reference: Annotated[
        str | None, typer.Option(help="Contrast whose grid the result has (default: CT, else T1c).")
    ] = None,
    no_register: Annotated[bool, typer.Option("--no-register", help="Trust the headers.")] = False,
    stripped: Annotated[
        bool | None,
        typer.Option("--skull-stripped/--whole-head", help="Instead of what the images show."),
    ] = None,
    trust_contrasts: Annotated[
        bool, typer.Option("--trust-contrasts", help="Only note images that look like another contrast.")
    ] = False,
    structures: Annotated[
        str | None, typer.Option(help="Only these, by TG-263 name, separated by commas.")
    ] = None,
    no_tumor: Annotated[bool, typer.Option("--no-tumor", help="Organs alone.")] = False,
    exclude: Annotated[Path | None, typer.Option(help="Mask of voxels that take no part.")] = None,
    fix_tumor: Annotated[
        Path | None, typer.Option(help="Mask of the tumor: 1 whole tumor; with values above 1 core too.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Samples to vote (default 50).")] = None,
    burn_in: Annotated[int | None, typer.Option(help="Sweeps before them (default 200).")] = None,
    chains: Annotated[int | None, typer.Option(help="Independent chains (default 1).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0,
    prior: Annotated[Prior | None, typer.Option(help="Prior on tumor shape (default crbm).")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="A first look, and marked as such.")] = False,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Again with every subset of the contrasts, as a table.")
    ] = False,
    min_volume: Annotated[
        float, typer.Option(min=0, max=LARGEST_SPECK, help="Remove parts of a structure below this, cm³.")
    ] = 0.0,
    save_samples: Annotated[
        bool, typer.Option("--save-samples", help="Write every sample as a label map.")
    ] = False,
    keep_face: Annotated[
        bool, typer.Option("--keep-face", help="Whole images in the report, with the patient's face.")
    ] = False,
    margins: Annotated[
        str | None, typer.Option(metavar="ctv=20,ptv=3", help="Also targets: GTV grown in the brain, mm.")
    ] = None,
    rtstruct: Annotated[
        bool, typer.Option("--rtstruct", help="Also contours, on the slices of a DICOM input.")
    ] = False,
    seg: Annotated[
        bool, typer.Option("--seg", help="Also DICOM-SEG, on the voxels of a DICOM input.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Another model file (see `tumoar train combine`).")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings, TOML.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all).")] = None,
    max_memory: Annotated[float | None, typer.Option(min=0.1, help="GB; refuse what needs more.")] = None,
    use_form: Annotated[UseForm | None, typer.Option(help="Which form where sform and qform differ.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the result that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Events as JSON lines.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 13 if the result needs review.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only refusals.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every step.")] = False,
) -> None:
    """Outline tumor and organs at risk: any subset of T1, T1c, T2, FLAIR, DIR, CT, or named images."""
    output = absolute(output)
    given = {"T1": t1, "T1c": t1c, "T2": t2, "FLAIR": flair, "DIR": dir, "CT": ct}
    files = {name: path for name, path in given.items() if path is not None}
    from tumoar.io.contrasts import read_contrasts

    table = read_contrasts(contrasts, model)
    for name, path in parse_images(image or [], table):
        if name in files:
            raise UsageError("images", f"{name} is given twice", do=f"name the second one {name}-2")
        files[name] = path
    if not files:
        raise UsageError("images", "no image given", do="give at least one, say --t1c FILE --flair FILE")
    changes = {"samples": samples, "burn_in": burn_in}
    settings = resolve(config, fast=fast, tumor=not no_tumor, prior=prior, chains=chains, gibbs=changes)

    from tumoar.app.pipeline import place
    from tumoar.cli.run import (
        Request,
        execute,
        finished,
        held,
        limit_threads,
        mask_on,
        require_memory,
        warm_blas,
    )
    from tumoar.cli.watch import Watch
    from tumoar.io.outputs import require_place
    from tumoar.radiotherapy.margins import parse_margins
    from tumoar.result.folder import Options, read_manifest

    inputs = (*files.values(), *(p for p in (exclude, fix_tumor, model, config, contrasts) if p is not None))
    require_place(output, inputs, overwrite=overwrite)
    chosen = load(model)
    names = tuple(structures.split(",")) if structures else ()
    for name in names:
        if name not in [o.name for o in chosen.labels.organs]:
            known = ", ".join(o.name for o in chosen.labels.organs)
            raise UsageError("structures", f"no structure '{name}'", do=f"use {known}")
    targets = parse_margins(margins) if margins else None
    if targets and names and not {"GTV", "Brain"} <= set(names):
        raise UsageError("margins", "margins need GTV and Brain", do="add them to --structures")
    limit_threads(threads)
    warm_blas()
    with Watch(as_json=json, quiet=quiet, verbose=verbose) as watch:
        images, digests, person = read(files, use_form, watch)
        case = assembled(images, flair2, reference, not no_register, stripped, table)
        drawn_on = series_among(files, case.reference) if rtstruct or seg else None
        if exclude is not None:
            from dataclasses import replace

            case = replace(case, excluded=mask_on(_image(exclude, use_form), case))
        known_tumor = held(_image(fix_tumor, use_form), case) if fix_tumor else None
        require_memory(case, chosen, max_memory)
        describe_case(case, chosen, watch)
        stamps = ("fast: a first look, not the full algorithm",) if fast else ()
        request = Request(
            output,
            settings,
            seed,
            Options(names, min_volume, save_samples),
            resume=resume,
            overwrite=overwrite,
            threads=threads,
            inputs=inputs,
            digests=digests,
            person=person,
            stamps=stamps,
            trust_contrasts=trust_contrasts,
            keep_face=keep_face,
        )
        if dry_run:
            place(case, chosen, settings, watch=watch, trust_contrasts=trust_contrasts)
            watch.say("dry run: everything is in order, nothing was written")
            return
        doubts: list[str] = []
        result = execute(case, chosen, request, watch, known_tumor)
        if targets is not None:
            add_targets(output, targets, watch)
        if drawn_on is not None:
            doubts = to_dicom(output, drawn_on, rtstruct, seg, watch)
        if result is not None:
            finished(result, output, watch)
        if ablate and result is not None:
            ablate_contrasts(result[0], request, chosen, watch)
    if strict and (doubts or read_manifest(output)["status"] != "OK"):
        raise typer.Exit(NEEDS_REVIEW)


def load(path: Path | None) -> Model:
    """The model asked for, or the one in the package."""
    from tumoar.io.models import default_model, load_model

    return default_model() if path is None else load_model([path])


def read(
    files: dict[str, Path], use_form: UseForm | None, watch: Watch
) -> tuple[dict[str, Image], dict[str, str], tuple[str, ...]]:
    """The images, the SHA-256 of their files, and whom they show."""
    from tumoar.io.identity import merged
    from tumoar.io.images import read_scans

    done = watch.stage("read")
    scans = read_scans(files, use_form=None if use_form is None else use_form.value)
    done()
    person = merged(s.person for s in scans.values())
    return {n: s.image for n, s in scans.items()}, {n: s.sha256 for n, s in scans.items()}, person


def assembled(
    images: dict[str, Image],
    flair2: bool,
    reference: str | None,
    register: bool,
    stripped: bool | None,
    contrasts: Mapping[str, Contrast] | None = None,
) -> Case:
    """The images brought together."""
    from tumoar.preprocess.case import build_case

    given: dict[str, Image | tuple[Image, Image]] = dict(images)
    if flair2:
        if not {"FLAIR", "T2"} <= set(images):
            raise UsageError("images", "FLAIR² needs both FLAIR and T2", do="give --flair and --t2")
        given = {k: v for k, v in given.items() if k not in ("FLAIR", "T2")}
        given["FLAIR2"] = (images["FLAIR"], images["T2"])
    return build_case(
        given, reference=reference, register=register, skull_stripped=stripped, contrasts=contrasts
    )


def describe_case(case: Case, model: Model, watch: Watch) -> None:
    """What was understood, before the work begins."""
    from tumoar.cli.run import forecast_gb

    head = "skull-stripped" if case.skull_stripped else "whole head"
    size = "×".join(map(str, case.grid.shape))
    names = ", ".join(c.name for c in case.contrasts)
    watch.say(f"{names}: {head}, {size} mm, in the space of {case.reference}")
    watch.say(f"about {forecast_gb(case, model):.1f} GB of memory")
    for note in case.notes:
        watch.say(f"note: {note}")


def _image(path: Path, use_form: UseForm | None) -> Image:
    from tumoar.io.images import read_image

    return read_image(path, use_form=None if use_form is None else use_form.value)


def series_among(files: dict[str, Path], reference: str) -> Path:
    """The input to draw on: the reference if it is a DICOM series, else the first that is."""
    from tumoar.io.images import is_series

    for name in (reference, *files):
        if name in files and is_series(files[name]):
            return files[name]
    raise UsageError(
        "export",
        "no DICOM series to draw on",
        do="give one of the images as a DICOM folder, or use `tumoar export --reference`",
    )


def add_targets(out: Path, margins: Margins, watch: Watch) -> None:
    """Add CTV and PTV to the result."""
    from tumoar.radiotherapy.targets import add_margins

    for row in add_margins(out, margins):
        watch.say(f"{row['name']} {row['outlined_cm3']} cm³: {row['how']}")


def to_dicom(out: Path, path: Path, rtstruct: bool, seg: bool, watch: Watch) -> list[str]:
    """Add RTSTRUCT and SEG files to the result; returns notes on them."""
    from tumoar.io.images import series_at
    from tumoar.radiotherapy.export import export

    done = watch.stage("dicom")
    names, notes = export(out, series_at(path), rtstruct=rtstruct, seg=seg)
    done()
    for text in (*(f"{out.name}/{name}: automatic, unreviewed" for name in names), *notes):
        watch.say(text)
    return notes


def ablate_contrasts(whole: Segmentation, request: Request, model: Model, watch: Watch) -> None:
    """Segment again with every proper subset of the contrasts; how far volumes and outlines move."""
    from itertools import combinations

    from tumoar.app.pipeline import segment as run
    from tumoar.result.folder import add_table
    from tumoar.result.scores import dice

    case, rows = whole.case, []
    names = [c.name for c in case.contrasts]
    for size in range(len(names) - 1, 0, -1):
        for subset in combinations(range(len(names)), size):
            chosen = [names[i] for i in subset]
            try:
                part = run(
                    case.restricted(subset),
                    model,
                    request.config,
                    seed=request.seed,
                    watch=watch,
                    trust_contrasts=True,  # the names were looked at with all contrasts
                )
            except TumoarError as refusal:
                watch.say(f"{'+'.join(chosen)}: {refusal.what}")
                continue
            for organ in whole.table.organs:
                rows.append(
                    {
                        "contrasts": "+".join(chosen),
                        "name": organ.name,
                        "mean_cm3": round(part.volume(organ.name).mean, 4),
                        "dice_with_all": round(dice(part.mask(organ.name), whole.mask(organ.name)), 4),
                    }
                )
    if rows:
        add_table(request.out, "ablation.tsv", rows)
        watch.say(f"{request.out.name}/ablation.tsv: {len(rows)} rows")
