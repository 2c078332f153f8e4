"""Run a segmentation and publish its folder: locked, resumable, atomic."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tumoar.app.live import watch_slices
from tumoar.app.machine import limit_threads, warm_blas
from tumoar.app.pipeline import Given, Keeper, segment
from tumoar.app.watch import Watch, stage
from tumoar.geometry.image import Case, frame_digest
from tumoar.io.calibration import to_json
from tumoar.io.checkpoint import Checkpoints
from tumoar.io.files import absolute, require_own
from tumoar.io.identity import Person, seal_identity
from tumoar.io.lock import lock_output
from tumoar.io.manifest import remove_leftovers
from tumoar.io.manifest_schema import RESULT
from tumoar.io.outputs import require_empty, require_place
from tumoar.io.rois import look_of_target
from tumoar.model.calibration import NOTHING, NOWHERE, Calibration, Conditions
from tumoar.model.generative import Model
from tumoar.report import add_targets, render, report_data
from tumoar.result.checks import review
from tumoar.result.folder import MANIFEST, WHOLE_ROW, Options, read_manifest, status, write_result
from tumoar.result.prediction import describe_interval
from tumoar.result.segmentation import STORED, Mask, Segmentation, Volume
from tumoar.result.stored import volume_of
from tumoar.version import __version__
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import IntegrityError, OutputError, UsageError
from tumoar.vocabulary.notes import Note

LIBRARIES = ("numpy", "scipy", "numba", "nibabel", "SimpleITK")


@dataclass(frozen=True)
class Job:
    """Settings of a run besides those of the model; without `out` nothing is written."""

    out: Path | None
    config: Config
    seed: int = 0
    options: Options = field(default_factory=Options)
    resume: bool = False
    overwrite: bool = False
    threads: int | None = None
    inputs: tuple[Path, ...] = ()  # input files and folders
    digests: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the input files by contrast
    person: Person = field(default=(), repr=False)  # stored only as digests
    stamps: tuple[str, ...] = ()  # "fast", "demo": shown with the result
    trust_contrasts: bool = False
    keep_face: bool = False  # in the images of the report
    case_name: CaseName = field(default_factory=CaseName, repr=False)  # in the report only
    calibration: Calibration = NOTHING
    conditions: Conditions = NOWHERE  # of the result, for a calibration


def execute(
    case: Case, model: Model, job: Job, watch: Watch, given: Given | None = None
) -> tuple[Segmentation, tuple[Note, ...]] | None:
    """Segment and publish; None if the same result already exists."""
    assert job.out is not None
    key = run_key(case, model, job, given)
    folder = job.out.with_name(f".{job.out.name}.checkpoints")
    with lock_output(job.out):
        require_own(folder.parent, folder)
        remove_leftovers(job.out)
        require_place(job.out, job.inputs, overwrite=job.overwrite)
        if not job.overwrite and _is_done(job.out, key):
            shutil.rmtree(folder, ignore_errors=True)  # left by a run stopped after its last step
            watch.say(f"{job.out.name}: already done, nothing changed")
            return None
        if job.overwrite:
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                do = "remove it by hand, or choose another output folder"
                raise OutputError("B58", "cannot remove the interrupted run", file=folder, do=do)
        elif folder.exists() and not job.resume:
            raise UsageError(
                "resume",
                "the output has an interrupted run",
                file=job.out,
                do="continue it with --resume, or start over with --overwrite",
            )
        threads = limit_threads(job.threads)
        keeper = watch_slices(Checkpoints(folder, key), case, model, job.config, folder)
        result = compute(case, model, job, watch, given, keeper)
        notes = review(result)
        with stage(watch, "write"):
            manifest = describe(result, model.sha256, job, key, threads)
            page = partial(render_report, result, job.keep_face, case_name=job.case_name)
            notes = write_result(job.out, result, notes, manifest, job.options, page, watch.lines)
        shutil.rmtree(folder, ignore_errors=True)
    return result, notes


def compute(
    case: Case, model: Model, job: Job, watch: Watch, given: Given | None, keeper: Keeper | None = None
) -> Segmentation:
    """Segment; only checkpoints are written."""
    warm_blas()
    result = segment(
        case,
        model,
        job.config,
        seed=job.seed,
        given=given,
        watch=watch,
        keeper=keeper,
        keeps_samples=job.options.samples,
        trust_contrasts=job.trust_contrasts,
    )
    return replace(result, calibration=job.calibration, conditions=job.conditions)


def publish(
    folder: str | Path,
    result: Segmentation,
    notes: Sequence[Note],
    manifest: Mapping[str, Any],
    job: Job,
    log: Iterable[str],
    *,
    overwrite: bool,
) -> None:
    """Write the folder of a result in memory; an existing one is replaced only with `overwrite`."""
    out = absolute(folder)
    require_empty(out, overwrite=overwrite, kind=RESULT)
    page = partial(render_report, result, job.keep_face, case_name=job.case_name)
    with lock_output(out):
        remove_leftovers(out)
        write_result(out, result, notes, manifest, job.options, page, log)


def render_report(
    result: Segmentation,
    keep_face: bool,
    manifest: Mapping[str, Any],
    *,
    case_name: CaseName,
    targets: Sequence[tuple[Mapping[str, Any], Mask]] = (),
) -> str:
    """Render the report of a result from its finished manifest; `targets` are CTV and PTV on its voxels."""
    notes = [Note.from_dict(row) for row in manifest["notes"]]
    data = report_data(result, notes, manifest, keep_face=keep_face, case_name=case_name)
    if targets:
        rows, masks = [row for row, _ in targets], [mask for _, mask in targets]
        data = add_targets(data, rows, masks, look_of_target(result.table)[0])
    return render(data)


def run_key(case: Case, model: Model, job: Job, given: Given | None) -> str:
    """SHA-256 of everything that determines the result."""
    digest = hashlib.sha256(case.D.tobytes())
    digest.update(case.grid.affine.tobytes())
    for extra in (case.excluded, *((given.z, given.y) if given else ())):
        digest.update(b"-" if extra is None else extra.tobytes())
    for image in case.inputs:  # the result is written on their voxels
        digest.update(image.grid.affine.tobytes())
        digest.update(image.to_reference.tobytes())
    about = {
        "inputs": [(i.name, *i.grid.shape, frame_digest(i.grid.frame)) for i in case.inputs],
        "reference": case.reference,
        "contrasts": [repr(c) for c in case.contrasts],
        "stripped": case.skull_stripped,
        "model": dict(model.sha256),
        "config": job.config.model_dump(mode="json"),
        "seed": job.seed,
        "organs": job.options.organs,
        "least": job.options.least_cm3,
        "samples": job.options.samples,
        "face": job.keep_face,
        "calibration": to_json(job.calibration),
        "version": __version__,
    }
    digest.update(json.dumps(about, sort_keys=True).encode())
    return digest.hexdigest()


def describe(
    result: Segmentation, model_sha256: Mapping[str, str], job: Job, key: str, threads: int
) -> dict[str, Any]:
    """Manifest of a run: inputs, settings, machine, times, quality."""
    case = result.case
    return {
        "version": __version__,
        "key": key,
        "stamps": list(job.stamps),
        "inputs": [
            {
                "contrast": given.name,
                "sha256": job.digests.get(given.name, ""),
                "shape": list(given.grid.shape),
                "spacing_mm": [round(float(s), 4) for s in given.grid.spacing],
                "orientation": given.orientation,
                "frame": frame_digest(given.grid.frame),
                "interpolated": given.is_interpolated,
                "registration": {k: round(float(v), 4) for k, v in given.figures.items()},
            }
            for given in case.inputs
        ],
        "patient": seal_identity(job.person, key),
        "reference": case.reference,
        "skull_stripped": case.skull_stripped,
        "model": dict(model_sha256),
        "config": result.config.model_dump(mode="json"),
        "conditions": asdict(job.conditions),
        "seed": result.seed,
        "placement": {k: round(float(v), 4) for k, v in result.placement.quality.items()},
        "seconds": {k: round(v, 1) for k, v in result.seconds.items()},
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "threads": threads,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def summarize(result: Segmentation, notes: Sequence[Note], out: Path, watch: Watch) -> None:
    """Report volumes of tumor and of calibrated organs, notes and status at the end of a run."""
    manifest = read_manifest(out)
    rows = {row["name"]: row for row in manifest["volumes"]}
    if manifest.get("whole_tumor"):
        rows[WHOLE_ROW] = manifest["whole_tumor"]
    tumor = ("Cavity", "GTV_residual", "GTV", "Edema", WHOLE_ROW)
    organs = [name for name, row in rows.items() if name not in tumor and row["calibrated_on"]]
    for name in (*(tumor if result.config.tumor else ()), *organs):
        if name in rows:
            watch.say(f"{name} {describe_volume(volume_of(rows[name]))}")
    for stamp in manifest["stamps"]:
        watch.say(stamp)
    for note in notes:
        watch.say(f"{note.level}: {note}")
    state = status(notes)
    watch.say(f"{state}: {out.name}/report.html", status=state)


def describe_volume(volume: Volume) -> str:
    """Outlined volume and its interval, with what the interval is."""
    low, high = volume.predicted.get(STORED, volume.central)
    what = describe_interval(volume.calibrated_on)
    return f"{volume.outlined:.1f} cm³ (outlined); {what} {low:.1f}–{high:.1f} cm³"


def _is_done(out: Path, key: str) -> bool:
    """Whether the same result exists (B56); another one is refused (B57)."""
    if not (out / MANIFEST).is_file():
        return False
    if read_manifest(out).get("key") == key:
        return True
    raise IntegrityError(
        "B57",
        "the output folder holds a result of other images or settings",
        file=out,
        do="choose another folder, or replace the result with --overwrite",
    )
