"""Import a mesh atlas in SAMSEG's text format, as a model with its own structures.

The folder holds the mesh (`atlas_level2.txt.gz`), label names (`compressionLookupTable.txt`), mixtures shared
by labels (`sharedGMMParameters.txt`) and the template image that defines the voxel coordinates
(`template.nii.gz`). A label that is split between several mixtures gets the first one; original label numbers
and splits are kept in the provenance of the atlas.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from tumoar.io.files import open_file
from tumoar.io.nifti import read_nifti
from tumoar.model.atlas import Atlas
from tumoar.numerics import tetra
from tumoar.vocabulary.errors import ModelFileError, TumoarError
from tumoar.vocabulary.labels import Gmm, LabelTable, Organ, Structure, default_labels

MESH = "atlas_level2.txt.gz"

_MAX_MESH, _MAX_TABLE, _CHUNK = 1 << 28, 1 << 20, 1 << 20  # bytes; the mesh in SAMSEG has 50 million
_MAX_NODES, _MAX_CELLS, _MAX_LINE = 500_000, 10_000_000, 1 << 14
_OUTSIDE_BRAIN = ("Unknown", "Skull", "Soft", "Eyes", "Optic")
_ORGANS = {
    "Brainstem": ("Brain-Stem",),
    "OpticChiasm": ("Optic-Chiasm",),
    "Hippocampus_L": ("Left-Hippocampus",),
    "Hippocampus_R": ("Right-Hippocampus",),
}
_LACKS = {
    "Brainstem": "has no cerebral peduncles, which planners include",
    "OpticChiasm": "is the crossing alone, without the ends of nerves and tracts that planners include",
}
"""What its organs lack by the definitions of docs/organs.md; the note and the dose of a result say so."""


@dataclass(frozen=True)
class Mesh:
    """A mesh as stored: voxel coordinates of the template, one column per compressed label."""

    nodes: npt.NDArray[np.float64]
    tetrahedra: npt.NDArray[np.int32]
    alpha: npt.NDArray[np.float32]
    stiffness: float
    movable: npt.NDArray[np.bool_]


def import_samseg(folder: str | Path, mesh: str = MESH) -> Atlas:
    """Import the atlas of a SAMSEG atlas folder, in world coordinates of its template."""
    folder = Path(folder)
    names, numbers, colors = _lookup_table(folder / "compressionLookupTable.txt")
    mixtures, splits = _shared_mixtures(folder / "sharedGMMParameters.txt", names)
    found = read_mesh(folder / mesh)
    if found.alpha.shape[1] != len(names):
        raise _unusable(folder / mesh, f"{found.alpha.shape[1]} labels, but {len(names)} names")
    affine = read_nifti(folder / "template.nii.gz").grid.affine
    if np.count_nonzero(np.abs(affine[:3, :3]) > 1e-6) != 3:
        raise _unusable(folder / "template.nii.gz", "the template's axes are not those of the world")
    tetrahedra = found.tetrahedra
    if np.linalg.det(affine[:3, :3]) < 0:
        tetrahedra = tetrahedra[:, [1, 0, 2, 3]]
    try:
        atlas = Atlas(
            found.nodes @ affine[:3, :3].T + affine[:3, 3],
            tetrahedra,
            found.alpha,
            _labels(names, colors, mixtures, splits),
            found.stiffness,
            {
                "imported_from": "SAMSEG",
                "mesh": mesh,
                "source_labels": dict(zip(names, numbers)),
                "split_labels": {name: list(gmms) for name, gmms in splits.items() if len(gmms) > 1},
                "lacks": _LACKS,
            },
        )
    except ValueError as error:
        raise _unusable(folder / mesh, str(error)) from error
    axes = np.argmax(np.abs(affine[:3, :3]), axis=1)
    if not np.array_equal(atlas.fixed, ~found.movable[:, axes]):
        raise _unusable(folder / mesh, "nodes are fixed elsewhere than on the faces of its box")
    return atlas


# ---- the mesh ----------------------------------------------------------------------------------------------


def read_mesh(path: str | Path) -> Mesh:
    """Read the reference mesh of a text file, plain or compressed."""
    path = Path(path)
    try:
        return _parse_mesh(_lines(_text(path, _MAX_MESH)))
    except (ValueError, KeyError, IndexError, StopIteration, OverflowError) as error:
        raise _unusable(path, "not a mesh collection") from error


def _parse_mesh(lines: Iterator[str]) -> Mesh:
    P, C, K, M = (
        int(_after(next(lines), f"Number of {what}")) for what in ("points", "cells", "labels", "meshes")
    )
    if not (4 <= P <= _MAX_NODES and 1 <= C <= _MAX_CELLS and 1 <= K <= 256 and 0 <= M <= 1000):
        raise ValueError("sizes out of bounds")
    next(lines)
    index, nodes = {}, np.empty((P, 3))
    for v in range(P):
        identity, *place = next(lines).split()
        index[identity], nodes[v] = v, place
    stiffness = float(_after(next(lines), "K"))
    for _ in range(M * (P + 1)):  # other positions of the same nodes
        next(lines)
    next(lines)
    corners = []
    for _ in range(C):
        _, kind, *cell = next(lines).split()
        if kind == "TETRAHEDRON":
            a, b, c, d = (index[corner] for corner in cell)
            corners.append((a, b, c, d))
    tetrahedra = np.array(corners, np.int32).reshape(-1, 4)
    next(lines)
    alpha = np.empty((P, K))
    movable = np.empty((P, 3), np.bool_)
    for _ in range(P):
        identity, *values = next(lines).split()
        if len(values) != K + 4:
            raise ValueError("a node with too many or too few values")
        alpha[index[identity]] = values[:K]
        movable[index[identity]] = [flag == "true" for flag in values[K + 1 :]]
    total = alpha.sum(1, keepdims=True)
    if len(index) != P or not (np.abs(total - 1) < 1e-3).all() or alpha.min() < 0:
        raise ValueError("nodes are given twice, or their probabilities do not add up to 1")
    if not (tetra.volumes(nodes, tetrahedra) > 0).all():
        raise ValueError("folded")
    return Mesh(nodes, tetrahedra, (alpha / total).astype(np.float32), stiffness, movable)


def _lines(text: str) -> Iterator[str]:
    """Lines of a text one by one; a list of all would take far more memory than the text."""
    stream = io.StringIO(text)
    while line := stream.readline(_MAX_LINE):
        if len(line) == _MAX_LINE:
            raise ValueError("a line without end")
        yield line


def _after(line: str, what: str) -> str:
    """The rest of a line that begins with `what`, as in 'Number of points: 5'."""
    if not line.startswith(f"{what}:"):
        raise ValueError(f"no '{what}' where it should be")
    return line[len(what) + 1 :]


# ---- labels ------------------------------------------------------------------------------------------------


def _lookup_table(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Names, original numbers and colors, in the order of the mesh columns."""
    try:
        rows = [line.split() for line in _text(path).splitlines() if line.strip()]
        table = {int(row[1]): (row[2], int(row[0]), [int(c) for c in row[3:6]]) for row in rows}
        names, numbers, colors = zip(*(table[c] for c in range(len(rows))))
        return list(names), list(numbers), ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in colors]
    except (ValueError, KeyError, IndexError) as error:
        raise _unusable(path, "not a lookup table with one line per label") from error


def _shared_mixtures(path: Path, names: list[str]) -> tuple[list[Gmm], dict[str, tuple[str, ...]]]:
    """Mixtures, and for each label those whose search strings match its name."""
    try:
        rows = [line.split() for line in _text(path).splitlines() if line.strip() and line.split()[0] != "#"]
        gmms = [Gmm(row[0], int(row[1])) for row in rows]
        splits = {
            name: tuple(row[0] for row in rows if any(part in name for part in row[2:])) for name in names
        }
    except (ValueError, IndexError) as error:
        raise _unusable(path, "not a table of shared mixtures") from error
    lonely = [name for name, found in splits.items() if not found]
    if lonely:
        raise _unusable(path, f"no mixture for {', '.join(lonely)}")
    return gmms, splits


def _labels(
    names: list[str], colors: list[str], mixtures: list[Gmm], splits: dict[str, tuple[str, ...]]
) -> LabelTable:
    """Label table of these structures and our tumor classes; label values are the mesh columns."""
    paper = default_labels()
    used = {splits[name][0] for name in names}
    structures = []
    for index, (name, color) in enumerate(zip(names, colors)):
        side = re.match("(Left|Right)-", name)
        twin = re.sub("^Left-|^Right-", "Right-" if side and side[1] == "Left" else "Left-", name)
        paired = side is not None and twin in names
        structures.append(
            Structure(
                name,
                index,
                in_brain=not any(part in name for part in _OUTSIDE_BRAIN),
                gmm=splits[name][0],
                color=color,
                side=("left" if side[1] == "Left" else "right") if side and paired else None,
                mirror=twin if paired else None,
            )
        )
    organs = [
        Organ(o, paper.organ(o).kind, parts) for o, parts in _ORGANS.items() if set(parts) <= set(names)
    ]
    return LabelTable(
        structures=tuple(structures),
        gmms=(*(g for g in mixtures if g.name in used), *(g for g in paper.gmms if g.role != "normal")),
        tumor=tuple(replace(t, index=254 + n) for n, t in enumerate(paper.tumor)),
        organs=(*organs, *(o for o in paper.organs if o.tumor and not o.structures)),
    )


# ---- files -------------------------------------------------------------------------------------------------


def _text(path: Path, most: int = _MAX_TABLE) -> str:
    """Text of a file, compressed or not, up to `most` bytes."""
    try:
        with open_file(path, "the file", most) as file:
            is_compressed = file.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if is_compressed else file
            content = b"".join(_chunks(stream, most))
    except TumoarError as refusal:
        raise _unusable(path, refusal.what) from refusal
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _unusable(path, "cannot read it: gzip stream damaged") from error
    if len(content) > most:
        raise _unusable(path, "too large")
    return content.decode("latin-1")


def _chunks(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Content in chunks, to the end or just beyond `most` bytes."""
    while most >= 0 and (chunk := stream.read(_CHUNK)):
        yield chunk
        most -= len(chunk)


def _unusable(path: Path, reason: str) -> ModelFileError:
    return ModelFileError("B54", f"SAMSEG atlas not usable: {reason}", file=path)
