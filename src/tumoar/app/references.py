"""Results and their references, for `tumoar calibrate`: found in folders or by a list."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.io.files import absolute, read_text
from tumoar.io.manifest import MANIFEST
from tumoar.io.nifti import SUFFIXES, read_nifti
from tumoar.result.masks import rearrange
from tumoar.vocabulary.aliases import canonical_name
from tumoar.vocabulary.errors import GeometryError, UnreadableFileError, UsageError

Mask = npt.NDArray[np.bool_]
Pairs = list[tuple[Path, Path]]

COLUMNS = ("result", "reference")


def pair_references(results: Path, references: Path) -> tuple[Pairs, list[str], list[str]]:
    """Pair results with references; also return the names of results without one, and of those not found.

    `results` is a folder of result folders, or one of them. `references` is a folder with an image of the
    same name for each (NAME.nii.gz, or the only image in a folder NAME), or a list with the columns result
    and reference.
    """
    top = absolute(results)
    found = [top] if (top / MANIFEST).is_file() else sorted(p.parent for p in top.glob(f"*/{MANIFEST}"))
    if not found:
        do = "give the folder that contains the results of `tumoar segment`"
        raise UsageError("calibration", "no results found", file=results, do=do)
    if references.is_dir():
        listed: dict[str, Path] = {}
        by_result = {out: _find(references, out.name) for out in found}
    else:
        listed = _read_list(references)
        by_result = {out: listed.get(out.name) for out in found}
    pairs = [(out, path) for out, path in by_result.items() if path is not None]
    _require_distinct(path for _, path in pairs)
    alone = [out.name for out, path in by_result.items() if path is None]
    return pairs, alone, sorted(listed.keys() - {out.name for out in found})


def _require_distinct(references: Iterable[Path]) -> None:
    seen: set[Path] = set()
    for path in references:
        if path.resolve() in seen:
            do = "give the reference of each patient once"
            raise UsageError("calibration", "two results have the same reference", file=path, do=do)
        seen.add(path.resolve())


def _find(folder: Path, name: str) -> Path | None:
    for suffix in SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    own = folder / name
    images = [p for p in sorted(own.iterdir()) if p.name.endswith(SUFFIXES)] if own.is_dir() else []
    if len(images) > 1:
        raise UsageError(
            "calibration",
            "several images could be the reference",
            file=own,
            found=f"{len(images)} images",
            do="keep one there, or give a list with the columns result and reference",
        )
    return images[0] if images else None


def _read_list(path: Path) -> dict[str, Path]:
    text = read_text(path, "the list")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if any(column not in header for column in COLUMNS):
        raise UsageError(
            "calibration",
            "the list has no columns result and reference",
            file=path,
            found=", ".join(header)[:80] or "an empty list",
            do="write one row per patient: name of the result folder, file of the reference",
        )
    at = [header.index(column) for column in COLUMNS]
    out: dict[str, Path] = {}
    for number, cells in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) <= max(at) or not all(cells[k].strip() for k in at):
            raise UsageError("calibration", f"row {number} of the list is incomplete", file=path)
        name = Path(cells[at[0]].strip()).name
        if name in out:
            raise UsageError("calibration", f"row {number} of the list names a result again", file=path)
        out[name] = absolute(path).parent / cells[at[1]].strip()
    return out


def read_organs(folder: Path, name: str, organs: Collection[str], grid: Grid) -> dict[str, Mask]:
    """Masks of organs that an expert drew for a result: NAME/STRUCTURE.nii.gz, by any usual name."""
    own = folder / name
    found: dict[str, Mask] = {}
    for path in sorted(own.iterdir()) if own.is_dir() else ():
        if not path.name.endswith(SUFFIXES):
            continue
        organ = canonical_name(path.name.removesuffix(".gz").removesuffix(".nii"))
        if organ is None or organ not in organs:
            raise UsageError(
                "calibration",
                "not the name of an organ of the result",
                file=path,
                do=f"name it as one of {', '.join(organs)}, or remove it",
            )
        if organ in found:
            raise UsageError("calibration", f"two masks of {organ}", file=path, do="keep one of them")
        found[organ] = _read_labels(path, grid) > 0
    return found


def read_reference(path: Path, grid: Grid, core: tuple[int, ...] = ()) -> tuple[Mask, Mask]:
    """Core and whole tumor of a reference on the voxels of a result.

    1 is tumor and higher values are core, as for `--fix-tumor`, or the values of `core` are.
    """
    labels = _read_labels(path, grid)
    return np.isin(labels, core) if core else labels > 1, labels > 0


def _read_labels(path: Path, grid: Grid) -> npt.NDArray[np.int64]:
    """A label map on the voxels of a result."""
    image = read_nifti(path)
    values = np.asarray(image.data, np.float64)
    if not np.isfinite(values).all() or np.abs(values - np.rint(values)).max() > 1e-3:
        raise UnreadableFileError(
            "label-values", "label maps hold whole numbers only", file=path, do="give a mask or a label map"
        )
    labels = rearrange(np.rint(values).astype(np.int64), image.grid, grid)
    if labels is None:
        raise GeometryError(
            "evaluate-grid",
            "reference does not lie on the grid of the result's reference image",
            file=path,
            found=f"{image.grid.shape} voxels",
            do="draw it on that image, or resample it there",
        )
    return labels
