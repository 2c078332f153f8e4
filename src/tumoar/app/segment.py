"""The use case `segment`, for the command line and the Python API.

Steps: check the output folder, read images, build the case, read masks, check memory; place, fit and sample;
write the folder; add margins, DICOM files and ablation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tumoar.app.ablation import ablate_contrasts
from tumoar.app.machine import forecast_gb, limited_threads, require_memory, warm_blas
from tumoar.app.masks import fix_tumor_from_mask, mask_on
from tumoar.app.pipeline import Given, place, require_tumor_contrast
from tumoar.app.publish import Job, compute, describe, execute, run_key, summarize
from tumoar.app.request import Request, Source, count_contrasts, require_structures, require_tumor
from tumoar.app.settings import resolve, stamp_settings
from tumoar.app.targets import add_margins_to_result
from tumoar.app.warm import Warming
from tumoar.app.watch import Listener, Watch, stage
from tumoar.geometry.image import Case, Image
from tumoar.io.calibration import default_calibration, read_calibration
from tumoar.io.files import absolute
from tumoar.io.identity import Person, merge_people
from tumoar.io.images import is_series, read_image, read_scans, series_at
from tumoar.io.models import find_model
from tumoar.io.nifti_header import Form
from tumoar.io.outputs import require_place
from tumoar.model.calibration import NOWHERE, Calibration, Conditions, digest_conditions
from tumoar.model.generative import Model
from tumoar.numerics.threads import use_threads
from tumoar.preprocess.case import build_case
from tumoar.radiotherapy.export import export
from tumoar.radiotherapy.margins import Margins
from tumoar.result.checks import review
from tumoar.result.folder import Options, read_manifest
from tumoar.result.parts import drop_targets
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import default_contrasts
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.labels import LabelTable, add_cavity
from tumoar.vocabulary.notes import Note, needs_review


@dataclass(frozen=True, eq=False)
class Prepared:
    """A request whose images were read and checked."""

    case: Case
    model: Model
    job: Job
    given: Given | None
    series: Path | None  # for contours


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a run; `result` is None if the same result already existed.

    Without an output folder, `manifest` is what run.json would contain. `doubts` are notes on DICOM files.
    """

    job: Job
    result: Segmentation | None
    notes: tuple[Note, ...] = ()
    doubts: tuple[Note, ...] = ()
    manifest: Mapping[str, Any] | None = None
    log: tuple[str, ...] = ()

    @property
    def needs_review(self) -> bool:
        """Whether any note asks for a review."""
        if self.result is None and self.job.out is not None:
            return needs_review(self.doubts) or read_manifest(self.job.out)["status"] != "OK"
        return needs_review((*self.doubts, *self.notes))


def segment(request: Request, watch: Watch | None = None) -> Outcome:
    """Carry out a request."""
    watch = watch or Listener()
    with limited_threads(request.threads), Warming() as kernels:
        ready = prepare(request, watch, kernels)
        kernels.wait(watch)
        job, out = ready.job, ready.job.out
        if out is None:
            return _in_memory(ready, watch)
        doubts: tuple[Note, ...] = ()
        done = execute(ready.case, ready.model, job, watch, ready.given)
        if request.targets is not None:
            add_targets(out, request.targets, watch)
        if ready.series is not None:
            doubts = tuple(to_dicom(out, ready.series, request.rtstruct, request.seg, watch))
        if done is None:
            if request.ablate:
                watch.say("no ablation: the result exists; use --overwrite to compute it again")
            return Outcome(job, None, doubts=doubts)
        summarize(*done, out, watch)
        if request.ablate:
            ablate_contrasts(done[0], job, ready.model, watch, ready.given)
        return Outcome(job, *done, doubts)


def check(request: Request, watch: Watch | None = None) -> None:
    """Dry run: refuse what `segment` would refuse before the fit; nothing is written."""
    watch = watch or Listener()
    with limited_threads(request.threads), Warming() as kernels:
        ready = prepare(request, watch, kernels)
        kernels.wait(watch)
        place(ready.case, ready.model, ready.job.config, watch=watch, trust_contrasts=request.trust_contrasts)


def prepare(request: Request, watch: Watch, kernels: Warming) -> Prepared:
    """Read and check all inputs of a request; kernels are compiled meanwhile."""
    config = resolve(
        request.config,
        fast=request.fast,
        method=request.method,
        tumor=request.tumor,
        prior=request.prior,
        gtv=request.gtv,
        postop=request.postop,
        chains=request.chains,
        gibbs={"samples": request.samples, "burn_in": request.burn_in},
    )
    require_tumor(request, tumor=config.tumor)
    out = None if request.output is None else absolute(request.output)
    if out is not None:
        require_place(out, request.files, overwrite=request.overwrite)
    model = load(request.model)
    require_structures(request, _table_of(model.labels, config))
    kernels.start(count_contrasts(request))
    warm_blas()
    digests: dict[str, str] = {}
    person: Person = ()
    if request.case is None:
        images, digests, person = read(request.images, request.use_form, watch)
        case = assemble(images, request)
    else:
        case = request.case
    require_tumor_contrast(case, config)
    wants_dicom = request.rtstruct or request.seg
    series = series_among(request.images, case.reference) if wants_dicom else None
    if request.exclude is not None:
        case = replace(case, excluded=mask_on(_image(request.exclude, request.use_form), case))
    given = request.fix_tumor
    if given is not None and not isinstance(given, Given):
        given = fix_tumor_from_mask(_image(given, request.use_form), case)
    require_memory(case, model, request.max_memory)
    if request.case is None:
        describe_case(case, model, watch)
    calibration, conditions = calibration_for(request, model, config, case, is_plain=given is None)
    job = Job(
        out,
        config,
        request.seed,
        Options(request.structures, request.min_volume, request.save_samples),
        resume=request.resume,
        overwrite=request.overwrite,
        threads=request.threads,
        inputs=request.files,
        digests=digests,
        person=person,
        stamps=(*request.stamps, *stamp_settings(request.method, config, fast=request.fast)),
        trust_contrasts=request.trust_contrasts,
        keep_face=request.keep_face,
        case_name=request.named,
        calibration=calibration,
        conditions=conditions,
    )
    return Prepared(case, model, job, given, series)


def _table_of(labels: LabelTable, config: Config) -> LabelTable:
    """The label table of a result with these settings."""
    if not config.tumor:
        return drop_targets(labels)
    return add_cavity(labels) if config.postop else labels


def calibration_for(
    request: Request, model: Model, config: Config, case: Case, *, is_plain: bool
) -> tuple[Calibration, Conditions]:
    """The calibration of a run, and the conditions under which it must hold.

    None holds if the tumor is given, or voxels are excluded. A requested calibration must hold.
    """
    names = [contrast.name for contrast in case.contrasts]
    is_plain &= case.excluded is None
    settings = config.model_dump(mode="json")
    own = [repr(row) for row in case.contrasts if row != default_contrasts().get(row.name)]
    conditions = digest_conditions(model.sha256, settings, names, own) if is_plain else NOWHERE
    if request.calibration is None:
        return default_calibration(), conditions
    found = read_calibration(request.calibration)
    if not any(found.find(name, conditions) for entry in found.entries for name in entry.structures):
        theirs = sorted({"+".join(entry.contrasts) for entry in found.entries})
        raise UsageError(
            "calibration",
            "the calibration was made with another model, other settings or contrasts",
            file=request.calibration,
            found=f"{'; '.join(theirs) or 'nothing'} there, {'+'.join(sorted(names))} here",
            do="use what it was made with, or omit --calibration",
        )
    return found, conditions


def _in_memory(ready: Prepared, watch: Watch) -> Outcome:
    """Segment without a folder."""
    result = compute(ready.case, ready.model, ready.job, watch, ready.given)
    key = run_key(ready.case, ready.model, ready.job, ready.given)
    manifest = describe(result, ready.model.sha256, ready.job, key, use_threads(None))
    job = replace(ready.job, person=(), inputs=())  # identity stays in the digests of the manifest
    return Outcome(job, result, review(result), manifest=manifest, log=tuple(watch.lines))


def load(model: str | Path | Model | None) -> Model:
    """Load the requested model, or the default one in the package."""
    return model if isinstance(model, Model) else find_model(model)


def read(
    images: Mapping[str, Source], use_form: Form | None, watch: Watch
) -> tuple[dict[str, Image], dict[str, str], Person]:
    """Read images, the SHA-256 of their files, and the patient."""
    files = {name: image for name, image in images.items() if not isinstance(image, Image)}
    with stage(watch, "read"):
        scans = read_scans(files, use_form=use_form)
    person = merge_people(scan.person for scan in scans.values())
    found = {name: image if isinstance(image, Image) else scans[name].image for name, image in images.items()}
    return found, {name: scan.sha256 for name, scan in scans.items()}, person


def assemble(images: Mapping[str, Image], request: Request) -> Case:
    """Build the case from images."""
    given: dict[str, Image | tuple[Image, Image]] = dict(images)
    if request.flair2:
        if not {"FLAIR", "T2"} <= set(images):
            raise UsageError("images", "FLAIR² needs both FLAIR and T2", do="give --flair and --t2")
        given = {k: v for k, v in given.items() if k not in ("FLAIR", "T2")}
        given["FLAIR2"] = (images["FLAIR"], images["T2"])
    return build_case(
        given,
        reference=request.reference,
        register=request.register,
        skull_stripped=request.skull_stripped,
        contrasts=request.table,
    )


def describe_case(case: Case, model: Model, watch: Watch) -> None:
    """Report the case before the computation."""
    head = "skull-stripped" if case.skull_stripped else "whole head"
    size = "×".join(map(str, case.grid.shape))
    names = ", ".join(c.name for c in case.contrasts)
    watch.say(f"{names}: {head}, {size} mm, in the space of {case.reference}")
    watch.say(f"about {forecast_gb(case, model):.1f} GB of memory")
    for note in case.notes:
        watch.say(f"note: {note}")


def series_among(images: Mapping[str, Source], reference: str) -> Path:
    """Input series for contours: the reference if it is a DICOM series, else the first one."""
    for name in (reference, *images):
        path = images.get(name)
        if isinstance(path, str | Path) and is_series(path):
            return Path(path)
    raise UsageError(
        "export",
        "no DICOM series to draw on",
        do="give one of the images as a DICOM folder, or use `tumoar export --reference`",
    )


def add_targets(out: Path, margins: Margins, watch: Watch) -> None:
    """Add CTV and PTV to the result."""
    for row in add_margins_to_result(out, margins):
        watch.say(f"{row['name']} {row['outlined_cm3']} cm³: {row['how']}")


def to_dicom(out: Path, path: Path, rtstruct: bool, seg: bool, watch: Watch) -> list[Note]:
    """Add RTSTRUCT and SEG files to the result; returns notes on them."""
    with stage(watch, "dicom"):
        names, notes = export(out, series_at(path), rtstruct=rtstruct, seg=seg)
    for name in names:
        watch.say(f"{out.name}/{name}: automatic, unreviewed")
    for note in notes:
        watch.say(f"note: {note}")
    return notes


def _image(source: Source, use_form: Form | None) -> Image:
    return source if isinstance(source, Image) else read_image(source, use_form=use_form)
