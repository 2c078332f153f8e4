"""One run from images to a published folder, as `segment` and `demo` do it."""

from __future__ import annotations

import hashlib
import json
import platform
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import SimpleITK as sitk  # noqa: N813
from scipy.linalg import cho_factor, cho_solve

from tumoar.app.pipeline import Given, segment
from tumoar.cli.watch import Watch
from tumoar.geometry.image import Case, Image, frame_digest
from tumoar.geometry.orientation import canonical
from tumoar.geometry.resample import resample
from tumoar.io.checkpoint import Checkpoints
from tumoar.io.files import require_own
from tumoar.io.identity import Person, sealed
from tumoar.io.lock import locked
from tumoar.io.manifest import tidy
from tumoar.io.outputs import require_place
from tumoar.model.generative import Model
from tumoar.numerics.threads import use_threads
from tumoar.preprocess.quality import Note
from tumoar.report import render, report_data
from tumoar.result.checks import review
from tumoar.result.folder import MANIFEST, Options, read_manifest, status, write_result
from tumoar.result.segmentation import Segmentation
from tumoar.version import __version__
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import GeometryError, IntegrityError, ResourceError, UsageError

BLAS_BYTES = 256 * 1024**2
"""More than OpenBLAS takes for its buffers."""
LIBRARIES = ("numpy", "scipy", "numba", "nibabel", "SimpleITK")


@dataclass(frozen=True)
class Request:
    """What to do with a case, beyond the model's settings."""

    out: Path
    config: Config
    seed: int = 0
    options: Options = field(default_factory=Options)
    resume: bool = False
    overwrite: bool = False
    threads: int | None = None
    inputs: tuple[Path, ...] = ()  # files and folders that were given
    digests: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the input files by contrast
    person: Person = field(default=(), repr=False)  # kept as digests only
    stamps: tuple[str, ...] = ()  # "fast", "demo": shown with the result
    trust_contrasts: bool = False
    keep_face: bool = False  # in the images of the report


def execute(
    case: Case, model: Model, request: Request, watch: Watch, given: Given | None = None
) -> tuple[Segmentation, tuple[Note, ...]] | None:
    """Segment and publish; None if the very same result is there already."""
    key = run_key(case, model, request, given)
    folder = request.out.with_name(f".{request.out.name}.checkpoints")
    with locked(request.out):
        require_own(folder.parent, folder)
        tidy(request.out)
        require_place(request.out, request.inputs, overwrite=request.overwrite)
        if not request.overwrite and _is_done(request.out, key):
            shutil.rmtree(folder, ignore_errors=True)  # left where a run was stopped after its last step
            watch.say(f"{request.out.name}: already done, nothing was changed")
            return None
        if request.overwrite:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.exists() and not request.resume:
            raise UsageError(
                "resume",
                "an interrupted run is there",
                file=request.out,
                do="continue it with --resume, or start anew with --overwrite",
            )
        threads = limit_threads(request.threads)
        warm_blas()
        keeper = Checkpoints(folder, key)
        result = segment(
            case,
            model,
            request.config,
            seed=request.seed,
            given=given,
            watch=watch,
            keeper=keeper,
            keeps_samples=request.options.samples,
            trust_contrasts=request.trust_contrasts,
        )
        notes = review(result)
        done = watch.stage("write")
        manifest = describe(result, model, request, key, threads)
        page = partial(_page, result, request.keep_face)
        notes = write_result(request.out, result, notes, manifest, request.options, page, watch.lines)
        done()
        shutil.rmtree(folder, ignore_errors=True)
    return result, notes


def _page(result: Segmentation, keep_face: bool, manifest: Mapping[str, Any]) -> str:
    """The report of a result from its finished manifest."""
    notes = [Note(n["id"], n["text"]) for n in manifest["notes"]]
    return render(report_data(result, notes, manifest, keep_face=keep_face))


def limit_threads(count: int | None) -> int:
    """Of our kernels and of SimpleITK, which otherwise takes all cores whatever is asked for."""
    used = use_threads(count)
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(used)
    return used


def warm_blas() -> None:
    """Let OpenBLAS, numpy's and scipy's, take its buffers now: without memory it would try for ever."""
    np.empty(BLAS_BYTES, np.uint8)  # a refusal, if there is not even that much
    np.linalg.solve(np.eye(2), np.ones(2))
    cho_solve(cho_factor(np.eye(2)), np.ones(2))


def run_key(case: Case, model: Model, request: Request, given: Given | None) -> str:
    """SHA-256 of everything that the result depends on."""
    digest = hashlib.sha256(case.D.tobytes())
    digest.update(case.grid.affine.tobytes())
    for extra in (case.excluded, *((given.z, given.y) if given else ())):
        digest.update(b"-" if extra is None else extra.tobytes())
    about = {
        "contrasts": [repr(c) for c in case.contrasts],
        "stripped": case.skull_stripped,
        "model": dict(model.sha256),
        "config": request.config.model_dump(mode="json"),
        "seed": request.seed,
        "organs": request.options.organs,
        "least": request.options.least_cm3,
        "samples": request.options.samples,
        "face": request.keep_face,
        "version": __version__,
    }
    digest.update(json.dumps(about, sort_keys=True).encode())
    return digest.hexdigest()


def describe(result: Segmentation, model: Model, request: Request, key: str, threads: int) -> dict[str, Any]:
    """The manifest: what went in, with what settings, on what, how long, how sure."""
    case = result.case
    return {
        "version": __version__,
        "key": key,
        "stamps": list(request.stamps),
        "inputs": [
            {
                "contrast": given.name,
                "sha256": request.digests.get(given.name, ""),
                "shape": list(given.grid.shape),
                "spacing_mm": [round(float(s), 4) for s in given.grid.spacing],
                "orientation": given.orientation,
                "frame": frame_digest(given.grid.frame),
                "interpolated": given.is_interpolated,
                "registration": {k: round(float(v), 4) for k, v in given.figures.items()},
            }
            for given in case.inputs
        ],
        "patient": sealed(request.person, key),
        "reference": case.reference,
        "skull_stripped": case.skull_stripped,
        "model": dict(model.sha256),
        "config": result.config.model_dump(mode="json"),
        "seed": result.seed,
        "placement": {k: round(float(v), 4) for k, v in result.placement.quality.items()},
        "seconds": {k: round(v, 1) for k, v in result.seconds.items()},
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "threads": threads,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def forecast_gb(case: Case, model: Model) -> float:
    """Memory that the run will need at most, from the number of voxels, contrasts and structures."""
    N, K = len(case.contrasts), model.labels.K
    per_voxel = (
        4 * 2 * N + 4 * K + 4 * 2 * 12 + K + 40
    )  # images, π, likelihoods twice, votes, labels and fields
    return 0.5 + per_voxel * int(np.prod(case.grid.shape)) / 1e9


def require_memory(case: Case, model: Model, limit_gb: float | None) -> None:
    """Refuse before the work begins what would not fit."""
    needed = forecast_gb(case, model)
    have = psutil.virtual_memory().available / 1e9  # with what the system only keeps of files read before
    limit = min(limit_gb, have) if limit_gb else have
    if needed > limit:
        raise ResourceError(
            "memory",
            f"this case needs about {needed:.1f} GB of memory",
            found=f"{limit:.1f} GB",
            do="close other programs, or run it on a larger machine",
        )


def mask_on(image: Image, case: Case, above: float = 0.0) -> npt.NDArray[np.bool_]:
    """Where a mask, given in the space of the reference, is above a value, on the case's grid."""
    turned, _ = canonical(image)
    mask = np.asarray(turned.data, np.float64) > above
    is_there = resample(mask, turned.grid, case.grid) > 0.5
    if not is_there.any():
        raise GeometryError(
            "mask",
            "mask does not meet the head",
            file=image.source,
            found=f"{int(mask.sum())} voxels in it",
            do=f"draw it on the {case.reference}",
        )
    return is_there


def held(image: Image, case: Case) -> Given:
    """A tumor mask as what is known: values 0 and 1 fix the whole tumor, values above 1 the core as well."""
    z = mask_on(image, case).astype(np.int8)
    if image.data.max() <= 1:
        return Given(z, np.where(z == 1, np.int8(-1), np.int8(0)))
    return Given(z, (mask_on(image, case, 1.0) & (z == 1)).astype(np.int8))


def finished(result: tuple[Segmentation, Sequence[Note]], out: Path, watch: Watch) -> str:
    """The last words of a run; returns the status."""
    segmentation, notes = result
    rows = {row["name"]: row for row in read_manifest(out)["volumes"]}
    for name in ("GTV", "Edema") if segmentation.config.tumor else ():
        if name in rows:
            low, high = segmentation.volume(name).spread(0.90)
            shown = f"{name} {rows[name]['outlined_cm3']:.1f} cm³ (outlined)"
            watch.say(f"{shown}; spread of the samples {low:.1f}–{high:.1f} cm³")
    for note in notes:
        watch.say(f"review: {note}")
    state = status(notes)
    watch.say(f"{state}: {out.name}/report.html", status=state)
    return state


def _is_done(out: Path, key: str) -> bool:
    """Whether the same result is there (B56); another one is refused (B57)."""
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
