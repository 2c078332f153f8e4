"""Requests of `tumoar segment` and `tumoar.segment`, checked without reading images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tumoar.app.pipeline import Given
from tumoar.geometry.image import Case, Image
from tumoar.io.contrasts import read_contrasts
from tumoar.io.nifti_header import Form
from tumoar.model.generative import Model
from tumoar.radiotherapy.margins import Margins, parse_margins
from tumoar.radiotherapy.targets import require_margins
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import Contrast, find_contrast
from tumoar.vocabulary.errors import UsageError
from tumoar.vocabulary.labels import LabelTable

Source = str | Path | Image

LARGEST_SPECK = 10.0  # cm³
NEEDS_FOLDER = ("rtstruct", "seg", "ablate", "resume", "overwrite")


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """A patient to segment: `images` by contrast, or a `case` instead.

    Files may be given as paths (NIfTI, or a folder with a DICOM series) or as images in memory. Without
    `output` nothing is written. `method` ("default" or "paper") chooses the settings, which a TOML file
    `config` changes; `samples`, `burn_in`, `chains`, `prior`, `gtv` and `tumor` override both. `stamps` are
    shown with the result.
    """

    images: Mapping[str, Source] = field(default_factory=dict)
    case: Case | None = None
    output: str | Path | None = None
    model: str | Path | Model | None = None
    config: str | Path | Config | None = None
    # images
    contrasts: str | Path | None = None  # a custom table
    flair2: bool = False
    reference: str | None = None
    register: bool = True
    skull_stripped: bool | None = None
    trust_contrasts: bool = False
    use_form: Form | None = None
    exclude: Source | None = None
    # structures
    structures: tuple[str, ...] = ()
    tumor: bool = True
    gtv: str | None = None
    postop: bool = False
    fix_tumor: Source | Given | None = None
    min_volume: float = 0.0
    # algorithm
    samples: int | None = None
    burn_in: int | None = None
    chains: int | None = None
    prior: str | None = None
    method: str | None = None
    fast: bool = False
    seed: int = 0
    # results
    margins: Margins | str | None = None
    rtstruct: bool = False
    seg: bool = False
    ablate: bool = False
    save_samples: bool = False
    keep_face: bool = False
    case_name: str | None = None  # in the report only
    case_date: str | None = None
    calibration: str | Path | None = None  # default: the one in the package
    stamps: tuple[str, ...] = ()
    # run
    threads: int | None = None
    max_memory: float | None = None
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        self._require_types()
        if self.case is None and not self.images:
            raise UsageError(
                "images", "no image given", do="give at least one, such as --t1c FILE --flair FILE"
            )
        if self.case is not None and self.images:
            raise UsageError("images", "both a case and images given", do="give one of them")
        if self.resume and self.overwrite:
            do = "continue the interrupted run with --resume, or start over with --overwrite"
            raise UsageError("options", "--resume and --overwrite exclude each other", do=do)
        _require_range("seed", self.seed, 0, None)
        _require_range("threads", self.threads, 1, None)
        _require_range("max_memory", self.max_memory, 0.1, None)
        _require_range("min_volume", self.min_volume, 0, LARGEST_SPECK)
        if self.output is None:
            asked = [name for name in NEEDS_FOLDER if getattr(self, name)]
            if asked:
                raise UsageError("output", f"{asked[0]} needs an output folder", do="give output as well")
        object.__setattr__(self, "images", collect_images(self.images.items(), self.table))
        object.__setattr__(self, "structures", tuple(self.structures))
        CaseName(self.case_name or "", self.case_date or "")  # refuses what is not safe
        if isinstance(self.margins, str):
            object.__setattr__(self, "margins", parse_margins(self.margins))

    def _require_types(self) -> None:
        """Raise a TypeError for arguments of wrong type."""
        if not isinstance(self.case, Case | None):
            raise TypeError(
                f"case must be a Case, got {type(self.case).__name__}; give images by contrast: t1c=..."
            )
        for name, value in self.images.items():
            _require_type(name, value, str, Path, Image)
        optional = (str, Path, type(None))
        _require_type("output", self.output, *optional)
        _require_type("model", self.model, Model, *optional)
        _require_type("config", self.config, Config, *optional)
        _require_type("contrasts", self.contrasts, *optional)
        _require_type("calibration", self.calibration, *optional)
        _require_type("case_name", self.case_name, str, type(None))
        _require_type("case_date", self.case_date, str, type(None))
        _require_type("exclude", self.exclude, Image, *optional)
        _require_type("fix_tumor", self.fix_tumor, Image, Given, *optional)
        _require_type("margins", self.margins, Margins, str, type(None))

    @cached_property
    def table(self) -> Mapping[str, Contrast] | None:
        """Contrasts of the custom table, if one is given."""
        return read_contrasts(self.contrasts, None if isinstance(self.model, Model) else self.model)

    @property
    def named(self) -> CaseName:
        """Name and date of the case for the report."""
        return CaseName(self.case_name or "", self.case_date or "")

    @property
    def targets(self) -> Margins | None:
        """The requested margins."""
        return self.margins if isinstance(self.margins, Margins) else None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files and folders that are read."""
        given = (*self.images.values(), self.exclude, self.fix_tumor, self.model, self.config, self.contrasts)
        given = (*given, self.calibration)
        return tuple(Path(value) for value in given if isinstance(value, str | Path))


def collect_images(
    pairs: Iterable[tuple[str, Source]], contrasts: Mapping[str, Contrast] | None = None
) -> dict[str, Source]:
    """Collect images by contrast, as spelled in the contrast table; each may be given once."""
    images: dict[str, Source] = {}
    for key, image in pairs:
        contrast, dash, number = key.partition("-")
        name = find_contrast(contrast, contrasts).name + dash + number
        if name in images:
            raise UsageError("images", f"{name} is given twice", do=f"name the second one {name}-2")
        images[name] = image
    return images


def count_contrasts(request: Request) -> int:
    """Number of images that the model sees: FLAIR² takes the place of two."""
    return len(request.images if request.case is None else request.case.contrasts) - request.flair2


def require_structures(request: Request, table: LabelTable) -> None:
    """Refuse structures that the model lacks, and margins without the structures they need."""
    known = [organ.name for organ in table.organs]
    for name in request.structures:
        if name not in known:
            raise UsageError("structures", f"no structure '{name}'", do=f"use {', '.join(known)}")
    if request.targets:
        require_margins(request.structures or known)


def require_tumor(request: Request, *, tumor: bool) -> None:
    """Refuse requests about tumor in a run for organs only."""
    asked = {"margins": request.targets, "fix_tumor": request.fix_tumor}
    found = [name for name, value in asked.items() if value not in (None, False)]
    if found and not tumor:
        raise UsageError("structures", f"organs only, but {found[0]} is about tumor", do="omit one of them")


def _require_type(name: str, value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        names = ", ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be one of {names}, got {type(value).__name__}")


def _require_range(name: str, value: Any, low: float, high: float | None) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < low or (high is not None and value > high):
        bounds = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        raise UsageError("options", f"{name} is out of range", found=value, do=f"give a number, {bounds}")
