"""The Python API: segment a patient, inspect the result, load it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack, overload

from tumoar.api.inputs import Case, Model, as_kind
from tumoar.api.live import Segmentation
from tumoar.api.options import Options, to_request, with_options
from tumoar.api.result import Result
from tumoar.api.stored import StoredResult, load_result
from tumoar.app.pipeline import Progress
from tumoar.app.segment import check as _check
from tumoar.app.segment import segment as _segment
from tumoar.app.watch import Listener
from tumoar.geometry import image
from tumoar.geometry.image import Grid, Image
from tumoar.model import generative
from tumoar.radiotherapy.margins import Margins
from tumoar.result.segmentation import Volume
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import TumoarError
from tumoar.vocabulary.notes import Note

__all__ = [
    "Case",
    "Config",
    "Grid",
    "Image",
    "Margins",
    "Model",
    "Note",
    "Progress",
    "Result",
    "Segmentation",
    "StoredResult",
    "TumoarError",
    "Volume",
    "check",
    "load_result",
    "segment",
]

_Model = str | Path | generative.Model | None
_Config = str | Path | Config | None
_Callback = Callable[[Progress], None] | None


@overload
def segment(
    case: image.Case | None = None,
    model: _Model = None,
    config: _Config = None,
    *,
    output: None = None,
    watch: _Callback = None,
    **options: Unpack[Options],
) -> Segmentation: ...


@overload
def segment(
    case: image.Case | None = None,
    model: _Model = None,
    config: _Config = None,
    *,
    output: str | Path,
    watch: _Callback = None,
    **options: Unpack[Options],
) -> StoredResult: ...


def segment(
    case: image.Case | None = None,
    model: _Model = None,
    config: _Config = None,
    *,
    output: str | Path | None = None,
    watch: _Callback = None,
    **options: Unpack[Options],
) -> Segmentation | StoredResult:
    """Outline tumor and organs at risk of one patient, as `tumoar segment` does.

    Give images by contrast, or a `Case` instead. Options have the same names and meaning as those of the
    command, and a refusal is a `TumoarError` with the same id. With `output`, the result folder is written
    and returned as by `load_result`, also if the same result already exists. Without it, the result stays in
    memory.

    Parameters
    ----------
    case, model, config
        A `Case`; a `Model` or its file; a `Config` or a TOML file.
    output
        The folder to write. An interrupted run is continued with `resume`; `overwrite` replaces a result.
    watch
        Called with a `Progress` at every step: stage, done, total, figures, notes.
    t1, t1c, t2, flair, dir, ct, images
        Paths of NIfTI files or of folders with a DICOM series, or `Image`. `images` maps names of further
        contrasts ("other", "T1c-2") to them.
    flair2, reference, register, skull_stripped, trust_contrasts, use_form
        How the images are combined; `register=False` trusts the headers.
    exclude, fix_tumor
        Masks on the reference image, as a path or an `Image`: voxels to ignore, and the tumor.
    structures, tumor, postop, min_volume, margins
        TG-263 names, as a sequence or separated by commas (default: all); whether to segment tumor, and a
        resection cavity; smaller parts of a structure, in cm³, are removed; CTV and PTV in mm, such as
        "ctv=15,ptv=3", or "estro-eano".
    method, fast
        "paper" for the method of the paper to the letter, whose settings a TOML file may change; `fast` for a
        quick preview. The result is marked with either.
    samples, burn_in, chains, prior, seed
        Settings that override `config`; the same seed gives the same result.
    rtstruct, seg, ablate, save_samples, keep_face
        Further outputs. With `save_samples`, every sample is kept, in the folder or in memory.
    case_name, case_date
        Name and date (YYYY-MM-DD) of the case in the report; they are never read from files.
    calibration
        A file of `tumoar calibrate` for prediction intervals, instead of the one in the package.
    threads, max_memory
        Limits; a case that needs more memory (GB) is refused before the computation.
    """
    request = to_request(options, case=case, model=model, config=config, output=output)
    outcome = _segment(request, Listener(watch))
    if outcome.job.out is not None:
        return load_result(outcome.job.out)
    found: Segmentation = as_kind(Segmentation, outcome.result, outcome=outcome, margins=request.targets)
    return found


def check(
    case: image.Case | None = None,
    model: _Model = None,
    config: _Config = None,
    *,
    output: str | Path | None = None,
    watch: _Callback = None,
    **options: Unpack[Options],
) -> None:
    """Check everything that `segment` checks before the fit, like `--dry-run`.

    It takes the same arguments, raises the same refusals, and writes nothing.
    """
    _check(to_request(options, case=case, model=model, config=config, output=output), Listener(watch))


segment.__signature__ = with_options(segment)  # type: ignore[attr-defined]
check.__signature__ = with_options(check)  # type: ignore[attr-defined]
