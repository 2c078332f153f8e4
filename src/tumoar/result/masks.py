"""Masks of the structures that the manifest of a finished result lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample
from tumoar.io.files import read_text
from tumoar.io.manifest import MANIFEST
from tumoar.io.manifest_schema import parse
from tumoar.io.nifti import read_nifti
from tumoar.vocabulary.errors import IntegrityError
from tumoar.vocabulary.labels import LabelTable, default_labels, parse_labels

SAME_VOXELS = 0.1  # mm at any corner

Mask = npt.NDArray[np.bool_]
Matrix = npt.NDArray[np.float64]


def structure_names(manifest: Mapping[str, Any]) -> list[str]:
    """Names of all structures of a result, margins last."""
    return [str(row["name"]) for row in (*manifest["volumes"], *manifest.get("margins", ()))]


def label_table(manifest: Mapping[str, Any]) -> LabelTable:
    """Label table of a result, from its manifest.

    Older versions did not write it and used the table in the package; it is used if it has every structure
    that the result lists.
    """
    if manifest.get("labels") is not None:
        return parse_labels(manifest["labels"])
    table = default_labels()
    known = {organ.name for organ in table.organs}
    unknown = [str(row["name"]) for row in manifest.get("volumes", ()) if row["name"] not in known]
    if unknown:
        raise IntegrityError(
            "result",
            "the result does not say what its labels mean",
            file=MANIFEST,
            found=unknown[0],
            do="run it again",
        )
    return table


def table_of_labels(path: Path) -> LabelTable:
    """Label table of a label map: that of the result it belongs to, else the one in the package."""
    for folder in path.absolute().parents[:2]:  # native/ and samples/ are subfolders
        if (folder / MANIFEST).is_file():
            manifest = parse(read_text(folder / MANIFEST, "the manifest"), folder)
            if path.absolute().relative_to(folder).as_posix() in manifest["files"]:
                return label_table(manifest)
    return default_labels()


def read_mask(out: Path, manifest: Mapping[str, Any], name: str) -> Image:
    """Read the mask of a structure on the voxels of the reference image; organs are not cut by tumor."""
    image = read_nifti(require_listed(out, manifest, f"structures/{name}.nii.gz"))
    return Image((np.asarray(image.data) > 0).astype(np.uint8), image.grid)


def require_listed(out: Path, manifest: Mapping[str, Any], name: str) -> Path:
    """Path of a file of a result, which its manifest must list."""
    if name not in manifest["files"] or not (out / name).is_file():
        raise IntegrityError("result", "a file of the result is missing", file=name, do="run it again")
    return out / name


def transform_to_reference(out: Path, manifest: Mapping[str, Any], contrast: str) -> Matrix:
    """(4, 4) from the world of an input to that of the result's reference image."""
    if contrast == manifest["reference"]:
        return np.eye(4)
    name = f"transforms/{contrast}_to_{manifest['reference']}.txt"
    return np.loadtxt(require_listed(out, manifest, name))


def resample_mask(mask: Image, grid: Grid, matrix: Matrix) -> Mask:
    """Resample a mask; voxels count if more than half inside. `matrix` maps to the world of the mask."""
    return np.asarray(resample(mask.data, mask.grid, grid, matrix) > 0.5)


def same_voxels(a: Grid, b: Grid) -> bool:
    """Whether two grids have the same voxels, whatever the order of their axes."""
    return _order(a, b) is not None


def rearrange(values: npt.NDArray[Any], of: Grid, onto: Grid) -> npt.NDArray[Any] | None:
    """Values in the storage order of another grid; None if the grids do not have the same voxels."""
    turn = _order(of, onto)
    if turn is None:
        return None
    axes = np.abs(turn).argmax(1)  # axis of `of` along axis i of `onto`
    out = values.transpose(axes)
    backwards = [slice(None, None, -1 if turn[i, axis] < 0 else 1) for i, axis in enumerate(axes)]
    return np.ascontiguousarray(out[tuple(backwards)])


def _order(a: Grid, b: Grid) -> npt.NDArray[np.int64] | None:
    """(3, 3) signed permutation from steps of `a` to steps of `b`, if both have the same voxels."""
    turn = np.rint(b.inverse[:3, :3] @ a.affine[:3, :3]).astype(np.int64)
    if not np.array_equal(turn @ turn.T, np.eye(3, dtype=np.int64)):
        return None
    if tuple(np.abs(turn) @ np.array(a.shape)) != b.shape:
        return None
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
    ends = corners * (np.array(a.shape) - 1)
    expected = (2 * ends - (np.array(a.shape) - 1)) @ turn.T  # twice the distance from the center
    expected = (expected + np.array(b.shape) - 1) / 2
    away = b.world(expected) - a.world(ends)
    return turn if float(np.abs(away).max()) <= SAME_VOXELS else None
