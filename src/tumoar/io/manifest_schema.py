"""Schema of manifests, and the digest that protects them.

The digest reveals damage and careless edits. It is not a signature: anyone who rewrites a manifest can
compute it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tumoar.vocabulary.errors import IntegrityError, ModelFileError, printable
from tumoar.vocabulary.labels import parse_labels
from tumoar.vocabulary.notes import Level

COMING = "coming"  # files that are being added, with their digests
DIGEST = "digest"  # SHA-256 of everything else in the manifest
RESULT = "result"  # kind of a folder; "tumoar result" in its manifest
ELSEWHERE = "names a file outside its folder"
LONGEST_NAME = 255
AGAIN = "choose another folder, or remove this one and run it again"


def is_inside(name: str) -> bool:
    """Whether a listed name stays inside its folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts


def _file_name(name: str) -> str:
    if not is_inside(name):
        raise ValueError(ELSEWHERE)
    if not name.isprintable() or "\\" in name or any(p.startswith(".") or not p for p in name.split("/")):
        raise ValueError("has a file name that tumoar does not write")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError("has a file name that is too long")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Files = dict[FileName, Sha256]
Word = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_+-][A-Za-z0-9._+-]{0,63}$")
]  # part of a file name
Text = Annotated[str, StringConstraints(max_length=2000), AfterValidator(printable)]
Figure = Annotated[float, Field(ge=0, le=1e5, allow_inf_nan=False)]  # cm³, seconds, GB


def _label_table(table: dict[str, Any]) -> dict[str, Any]:
    try:
        parse_labels(table)
    except ModelFileError as refusal:
        raise ValueError(refusal.what) from refusal
    return table


Labels = Annotated[dict[str, Any], AfterValidator(_label_table)]
"""A label table as `vocabulary.labels.parse_labels` reads it."""


class _Open(BaseModel):
    """Further members are allowed; they are shown but never acted on."""

    model_config = ConfigDict(extra="allow", strict=True)


class Structure(_Open):
    """A row of the structure tables; its mask is a file of the result."""

    name: Word
    outlined_cm3: Figure


class Figures(_Open):
    """Volumes of the samples, and prediction intervals."""

    outlined_cm3: Figure
    mean_cm3: Figure
    sd_cm3: Figure
    p05_cm3: Figure
    p95_cm3: Figure
    low50_cm3: Figure | None = None  # prediction intervals, if the structure is calibrated
    high50_cm3: Figure | None = None
    low90_cm3: Figure | None = None
    high90_cm3: Figure | None = None
    calibrated_on: Text = ""


class Measured(Figures, Structure):
    """A structure that was segmented."""


Millimeters = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)]


class Numbers(_Open):
    """Numbers by which a structure is predicted (`model.expert.Learned`)."""

    displacements_mm: Annotated[list[Millimeters], Field(min_length=9, max_length=10_000)]
    roughness_mm: Scale
    variation: Scale
    length_mm: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]


class Predicted(Numbers):
    """Numbers with which a result was made."""

    calibrated_on: Text
    chance: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Flag(_Open):
    """A note (`vocabulary.notes.Note`); results of older versions have `id` and `text` alone."""

    id: Text
    text: Text
    level: Level = "review"
    action: Text = ""
    where: Text = ""


class Given(_Open):
    """An input image."""

    contrast: Word
    sha256: Text = ""
    frame: Text = ""


class Manifest(_Open):
    """Manifest of a folder that tumoar published; only results have more than files."""

    format: Annotated[str, StringConstraints(pattern=r"^tumoar [a-z ]{1,40}$")]
    files: Files
    coming: Files = Field(default_factory=dict)
    key: Text = ""
    version: Text = ""
    status: Literal["OK", "NEEDS REVIEW"] = "NEEDS REVIEW"
    notes: list[Flag] = Field(default_factory=list)
    stamps: list[Text] = Field(default_factory=list)
    inputs: list[Given] = Field(default_factory=list)
    reference: Word | None = None
    patient: dict[str, Text] = Field(default_factory=dict)
    labels: Labels | None = None
    volumes: list[Measured] = Field(default_factory=list)
    whole_tumor: Figures | None = None
    prediction: dict[Word, Predicted] = Field(default_factory=dict)
    margins: list[Structure] = Field(default_factory=list)
    seconds: dict[str, Figure] = Field(default_factory=dict)
    peak_gb: Figure | None = None
    cohort: dict[str, Any] = Field(default_factory=dict)


NO_MANIFEST = "not the JSON of a manifest"


def seal(manifest: Mapping[str, Any]) -> str:
    """Serialize a manifest with its digest."""
    body = {name: value for name, value in manifest.items() if name != DIGEST}
    return json.dumps(body | {DIGEST: _digest(body)}, indent=1) + "\n"


def parse(text: str, folder: Path) -> dict[str, Any]:
    """Parse a manifest; refuse it unless its digest matches and every member is valid."""
    try:
        manifest = json.loads(text)
        found = Manifest.model_validate(manifest)
        is_whole = manifest.pop(DIGEST, None) == _digest(manifest)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if ELSEWHERE in first["msg"]:
            raise IntegrityError("result", f"the manifest {ELSEWHERE}", file=folder, do=AGAIN) from error
        where = ".".join(str(part)[:40] for part in first["loc"][:3])
        found_there = f"{where}: {first['msg'].lower()}" if where else NO_MANIFEST
        raise _damaged(folder, found_there) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, NO_MANIFEST) from error
    if not is_whole:
        raise _damaged(folder, "its digest does not match")
    rows = [row.name for row in (*found.volumes, *found.margins)]
    if len(set(rows)) != len(rows):
        raise _damaged(folder, "a structure is listed twice")
    missing = [name for name in rows if f"structures/{name}.nii.gz" not in found.files]
    if missing:
        raise _damaged(folder, f"the mask of {missing[0]} is not listed")
    return dict(manifest)


def _damaged(folder: Path, found: str) -> IntegrityError:
    return IntegrityError(
        "result", "the manifest is damaged or was changed", file=folder, found=found, do=AGAIN
    )


def _digest(body: Mapping[str, Any]) -> str:
    plain = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
