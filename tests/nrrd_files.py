"""NRRD files made for the tests, field by field."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from tumoar.geometry.image import Grid

TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def vector(values) -> str:
    return f"({','.join(f'{v:.12g}' for v in values)})"


def fields_of(values: np.ndarray, grid: Grid) -> dict[str, str]:
    """The header that SimpleITK would write."""
    affine = TO_LPS @ grid.affine
    return {
        "type": {"f4": "float", "f8": "double", "i2": "short"}[values.dtype.str[1:]],
        "dimension": "3",
        "space": "left-posterior-superior",
        "sizes": " ".join(map(str, values.shape)),
        "space directions": " ".join(vector(affine[:3, axis]) for axis in range(3)),
        "kinds": "domain domain domain",
        "endian": "little",
        "encoding": "raw",
        "space origin": vector(affine[:3, 3]),
    }


def content(fields: dict[str, str], data: bytes, magic: str = "NRRD0004", more: str = "") -> bytes:
    lines = [magic, "# made for a test", *(f"{key}: {value}" for key, value in fields.items())]
    packed = gzip.compress(data) if fields.get("encoding") in ("gzip", "gz") else data
    return ("\n".join(lines) + "\n" + more + "\n").encode() + packed


def write_nrrd(path: Path, values: np.ndarray, grid: Grid, *, more: str = "", **changed: str | None) -> Path:
    """A dose; fields are changed by their names with _ for a space, and left out where they are None."""
    new = {key.replace("_", " "): value for key, value in changed.items()}
    fields = {k: v for k, v in (fields_of(values, grid) | new).items() if v is not None}
    path.write_bytes(content(fields, values.tobytes(order="F"), more=more))
    return path
