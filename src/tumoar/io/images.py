"""Read images: a NIfTI file, or a folder with a DICOM series."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from tumoar.geometry.image import Image
from tumoar.io.nifti import read_hashed
from tumoar.io.nifti_header import SPACING, Form
from tumoar.vocabulary.errors import GeometryError, UnreadableFileError

if TYPE_CHECKING:
    from tumoar.io.dicom import Series


@dataclass(frozen=True, eq=False)
class Scan:
    """An image, the SHA-256 of its files, and the patient it names; `person` is never shown."""

    image: Image
    sha256: str
    person: tuple[str, ...] = field(default=(), repr=False)


def read_image(path: str | Path, *, use_form: Form | None = None) -> Image:
    """Read a NIfTI file, or the only series of a folder; FOLDER#2 is the second of several series."""
    return read_scan(path, use_form=use_form).image


def read_scan(path: str | Path, *, use_form: Form | None = None) -> Scan:
    """Like `read_image`, with digest and identity to distinguish inputs and patients."""
    if _series_path(Path(path))[0] is None:
        return Scan(*read_hashed(path, use_form=use_form))
    series = series_at(path)
    return Scan(*_read_whole(series), series.person)


def series_at(path: str | Path) -> Series:
    """Find the series of a folder, or of FOLDER#2."""
    from tumoar.io.dicom import only_series

    folder, which = _series_path(Path(path))
    if folder is None:
        raise UnreadableFileError("B1", "no such folder", file=path, do="give a folder with a DICOM series")
    return only_series(folder, which)


def is_series(path: str | Path) -> bool:
    """Whether a path is a folder, and so a series, rather than a file."""
    return _series_path(Path(path))[0] is not None


def read_whole(series: Series) -> Image:
    """Read a series; refuse voxel sizes that no image of a head has."""
    return _read_whole(series)[0]


def _read_whole(series: Series) -> tuple[Image, str]:
    from tumoar.io.dicom import read_hashed

    image, digest = read_hashed(series)
    if image.grid.spacing.min() < SPACING[0] or image.grid.spacing.max() > SPACING[1]:
        raise GeometryError(
            "B16",
            f"voxel size outside {SPACING[0]:g}–{SPACING[1]:g} mm",
            found="×".join(f"{s:.3g}" for s in image.grid.spacing) + " mm",
        )
    return image, digest


def read_scans(files: Mapping[str, str | Path], *, use_form: Form | None = None) -> dict[str, Scan]:
    """Read several images of one patient; refuse headers that name different patients."""
    from tumoar.io.identity import is_same_person

    scans = {name: read_scan(path, use_form=use_form) for name, path in files.items()}
    for (a, one), (b, other) in combinations(scans.items(), 2):
        if not is_same_person(one.person, other.person):
            raise GeometryError(
                "B34", f"{a} and {b} are from different patients", do="give images of one patient"
            )
    return scans


def _series_path(path: Path) -> tuple[Path | None, int | None]:
    """Folder of a series and its number in the folder, if one is given."""
    if os.path.isdir(path):
        return path, None
    folder, mark, number = str(path).rpartition("#")
    if mark and number.isdecimal() and os.path.isdir(folder) and not os.path.exists(path):
        return Path(folder), int(number)
    return None, None
