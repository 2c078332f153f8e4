"""Score a result against a reference.

The masks of a result, with organs not cut by tumor, are resampled to the image that the reference was drawn
on. A label map has one structure per voxel, so that tumor hides organs: voxels that one side hides are
excluded from the organs of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.contours import Outline, count_outside, fill_contours
from tumoar.geometry.image import Grid, frame_digest
from tumoar.io.dicom_file import open_dicom
from tumoar.io.files import open_file
from tumoar.io.identity import Person, require_patient
from tumoar.io.nifti import SUFFIXES, read_nifti
from tumoar.io.rtstruct import MOST_BYTES, read_rtstruct
from tumoar.io.seg_read import SEG, mask_on, read_seg
from tumoar.result.folder import read_manifest
from tumoar.result.masks import (
    label_table,
    read_mask,
    rearrange,
    require_listed,
    resample_mask,
    same_voxels,
    structure_names,
    table_of_labels,
    transform_to_reference,
)
from tumoar.result.scores import Scores, compare, compare_organs, organ_mask
from tumoar.vocabulary.aliases import rename
from tumoar.vocabulary.errors import GeometryError, IntegrityError, UnreadableFileError, UsageError
from tumoar.vocabulary.errors import join_names as shortened
from tumoar.vocabulary.labels import LabelTable

LARGEST = 2**31  # of a label
HIDDEN = "tumor hides organs in label maps: organs are compared where neither has tumor"

Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]
Values = Mapping[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of every common structure, notes on the rest, and the names that were mapped."""

    scores: dict[str, Scores]
    notes: tuple[str, ...] = ()
    mapped: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Space:
    """A result on the voxels of one image: `mask` of a name, and `labels` as one map.

    `table` is the label table. `hides` is set if the masks are those of a label map; `frame` is the digest of
    the frame of reference.
    """

    table: LabelTable
    grid: Grid
    names: tuple[str, ...]
    mask: Callable[[str], Mask]
    labels: Callable[[], Labels]
    hides: bool
    frame: str = ""
    matrix: npt.NDArray[np.float64] = field(default_factory=lambda: np.eye(4))


@dataclass(frozen=True, eq=False)
class Drawn:
    """A reference with named structures: functions that fill each on a grid, frame of reference, patient."""

    fill: Mapping[str, Callable[[Grid], Mask]]
    frame: str | None
    person: Person
    notes: tuple[str, ...] = ()
    outlines: tuple[Outline, ...] = ()


def is_nifti(path: Path) -> bool:
    """Whether a reference is a label map or a mask, judged by its file name."""
    return path.name.casefold().endswith((*SUFFIXES, ".hdr", ".img"))


def names_of(result: Path) -> list[str]:
    """Names of all structures of a result folder, or of a label map."""
    table = label_table(read_manifest(result)) if result.is_dir() else table_of_labels(result)
    return [organ.name for organ in table.organs]


def score(result: Path, reference: Path, meaning: Values, given: Mapping[str, str]) -> Scored:
    """Score a result folder or label map against a label map, a mask, an RTSTRUCT or a DICOM-SEG file.

    `meaning` maps structures to values of a label map, `given` names of a structure set to structures.
    """
    if is_nifti(reference):
        return _score_labels(spaces(result), result.name, reference, meaning)
    drawn = _read_drawn(reference)
    is_checked = False
    if result.is_dir():
        manifest = read_manifest(result)
        seal, key = manifest.get("patient", {}), manifest.get("key", "")
        is_checked = require_patient(seal, key, drawn.person, "the reference")
    found = spaces(result)
    scored = _score_drawn(found, drawn, reference, given)
    is_linked = bool(drawn.frame) and any(s.frame == frame_digest(drawn.frame) for s in found)
    if is_checked or is_linked:
        return scored
    what = f"neither patient nor frame of reference of {reference.name} could be checked"
    return replace(scored, notes=(*scored.notes, what))


# ---- label maps --------------------------------------------------------------------------------------------


def _score_labels(found: Sequence[Space], result: str, reference: Path, meaning: Values) -> Scored:
    truth, space, notes = _match_grids(found, reference)
    table = space.table
    is_ours = _is_ours(truth, table)
    if not meaning:
        if not is_ours:
            values = ", ".join(map(str, np.unique(truth)[:8].tolist()))
            raise UsageError(
                "evaluate",
                "reference is not a tumoar label map",
                file=reference,
                found=f"values {values}",
                do="give the meaning of its values, as in --values GTV=2,3",
            )
        scores = compare_organs(table, space.labels(), truth, space.grid.spacing)
        return Scored(scores, (*notes, HIDDEN))
    tumor = {v for name, numbers in meaning.items() if not _anatomy(table, name) for v in numbers}
    tumor |= {t.index for t in table.tumor} if is_ours else set()
    there, scores, hides = set(np.unique(truth).tolist()), {}, False
    for name, numbers in meaning.items():
        missing = [n for n in name.split("+") if n not in space.names]
        if missing:
            raise UsageError("structures", f"the result has no {missing[0]}", file=result)
        mask = np.logical_or.reduce([space.mask(n) for n in name.split("+")])
        if not there & set(numbers):
            listing = ", ".join(map(str, numbers))
            notes.append(f"no voxel of {reference.name} has the value of {name} ({listing})")
        if space.hides and not mask.any():
            notes.append(f"no voxel of the result is {name}")
        hidden = _hidden(space, table, name)
        if _anatomy(table, name):
            hidden |= np.isin(truth, list(tumor - set(numbers)))
        hides |= bool(hidden.any())
        scores[name] = compare(mask & ~hidden, np.isin(truth, list(numbers)) & ~hidden, space.grid.spacing)
    if hides:
        notes.append(HIDDEN)
    unused = sorted(there - {0} - {v for numbers in meaning.values() for v in numbers})
    if unused:
        notes.append(f"values of {reference.name} that were not compared: {shortened(map(str, unused))}")
    notes += _without_reference(space, {n for name in meaning for n in name.split("+")})
    return Scored(scores, tuple(notes))


def _match_grids(candidates: Sequence[Space], reference: Path) -> tuple[Labels, Space, list[str]]:
    """Labels of the reference, and the result on the same image in the same storage order."""
    truth_there, grid = _read_labels(reference)
    found = [
        (truth, space)
        for space in candidates
        if (truth := rearrange(truth_there, grid, space.grid)) is not None
    ]
    if not found:
        raise GeometryError(
            "evaluate-grid",
            "reference lies on the grid of none of the result's images",
            file=reference,
            found=f"{grid.shape} voxels",
            do="draw it on an image that was given, or resample it there",
        )
    moved = any(np.abs(space.matrix - found[0][1].matrix).max() > 1e-3 for _, space in found)
    sentence = (
        "several images have the voxels of the reference and were moved: it was assumed to lie on the first"
    )
    return *found[0], [sentence] if moved else []


def _read_labels(path: Path) -> tuple[Labels, Grid]:
    image = read_nifti(path)
    values = np.asarray(image.data, np.float64)
    whole = np.rint(values)
    is_whole = np.isfinite(values).all() and np.abs(values - whole).max() < 1e-3
    if not is_whole or np.abs(whole).max() >= LARGEST:
        raise UnreadableFileError(
            "label-values", "label maps hold whole numbers only", file=path, do="give a mask or a label map"
        )
    return whole.astype(np.int64), image.grid


def _is_ours(truth: Labels, table: LabelTable) -> bool:
    """Whether label values follow our table; in other conventions 1 is tumor, not white matter."""
    values = set(np.unique(truth).tolist())
    sided = {s.index for s in table.structures if s.side and s.in_brain}
    return sided <= values <= _indices(table)


def _indices(table: LabelTable) -> set[int]:
    return {*table.indices.tolist(), *(t.index for t in table.tumor)}


# ---- structure sets and segmentations ----------------------------------------------------------------------


def _score_drawn(
    candidates: Sequence[Space], drawn: Drawn, reference: Path, given: Mapping[str, str]
) -> Scored:
    table, notes, known = candidates[0].table, list(drawn.notes), candidates[0].names
    mapped = {name: new for name, new in given.items() if name in drawn.fill}
    names = rename(list(drawn.fill), mapped, known)
    taken = {new: name for name, new in names.items() if new in known}
    if not taken:
        raise UsageError(
            "evaluate",
            "no known structure in the reference",
            file=reference,
            found=shortened(drawn.fill),
            do=f"map them with --map NAME={known[0]}; known are {', '.join(known)}",
        )
    refusal: GeometryError | None = None
    for space in _fitting(candidates, drawn, notes):
        try:
            truth = {new: drawn.fill[taken[new]](space.grid) for new in known if new in taken}
        except GeometryError as error:  # drawn on another image
            refusal = refusal or error
            continue
        scores = {}
        for new, mask in truth.items():
            hidden = _hidden(space, table, new)
            if hidden.any():
                notes = [*(n for n in notes if n != HIDDEN), HIDDEN]
            scores[new] = compare(space.mask(new) & ~hidden, mask & ~hidden, space.grid.spacing)
        notes += [f"{taken[new]} was matched to {new}" for new in scores if taken[new] != new]
        notes += _outside(drawn, space, {taken[new] for new in scores})
        unused = [name for name in drawn.fill if names[name] not in scores]
        if unused:
            notes.append(f"structures of {reference.name} that were not compared: {shortened(unused)}")
        notes += _without_reference(space, set(scores))
        return Scored(scores, tuple(notes), frozenset(mapped))
    raise refusal or GeometryError(
        "B33",
        "contours lie in another frame of reference than the result's images",
        file=reference,
        do="give contours on an image that was segmented",
    )


def _read_drawn(path: Path) -> Drawn:
    """An RTSTRUCT or DICOM-SEG file."""
    with open_file(path, "the reference", MOST_BYTES):
        kind = open_dicom(path, pixels=False).SOPClassUID
    if kind == SEG:
        found = read_seg(path)
        fills = {name: partial(mask_on, frames, name=name) for name, frames in found.frames.items()}
        return Drawn(fills, found.frame, found.person)
    read = read_rtstruct(path)
    contours = {o.name: partial(_outline_on, o) for o in read.outlines}
    return Drawn(contours, read.frame, read.person, read.notes, read.outlines)


def _outline_on(outline: Outline, grid: Grid) -> Mask:
    return np.asarray(fill_contours(outline, grid) > 0.5)


def _outside(drawn: Drawn, space: Space, used: set[str]) -> Iterator[str]:
    for outline in drawn.outlines:
        count = count_outside(outline, space.grid) if outline.name in used else 0
        if count:
            yield f"{count} contours of {outline.name} reach beyond the image, where they are not compared"


def _fitting(candidates: Sequence[Space], drawn: Drawn, notes: list[str]) -> list[Space]:
    """The result on the images in the frame of reference of the reference, if known."""
    ours = frame_digest(drawn.frame)
    found = [s for s in candidates if not ours or not s.frame or s.frame == ours]
    if ours and found and not any(s.frame for s in found):
        notes.append("the result has no frame of reference: that of the reference was not checked")
    return found


# ---- the result --------------------------------------------------------------------------------------------


def spaces(result: Path) -> list[Space]:
    """A result on the voxels of each of its images, reference image first; a label map on its own voxels.

    Corrected results have the voxels of the reference image alone.
    """
    if not result.is_dir():
        table = table_of_labels(result)
        labels, grid = _read_labels(result)
        foreign = sorted(set(np.unique(labels).tolist()) - _indices(table))
        if foreign:
            raise UsageError(
                "evaluate",
                "result is not a tumoar label map",
                file=result,
                found=f"values {shortened(map(str, foreign))}",
                do="give a folder of `tumoar segment`, or a label map of it",
            )
        names = tuple(organ.name for organ in table.organs)
        masks = lambda name: organ_mask(table, table.organ(name), labels)  # noqa: E731
        return [Space(table, grid, names, masks, lambda: labels, True)]
    manifest = read_manifest(result)
    frames = {i["contrast"]: i.get("frame", "") for i in manifest.get("inputs", [])}
    first = manifest["reference"]
    return [
        _space(result, manifest, name, frames.get(name) or "")
        for name in (first, *(n for n in frames if n != first and _native(n) in manifest["files"]))
    ]


def _native(contrast: str) -> str:
    return f"native/{contrast}_segmentation.nii.gz"


def _space(out: Path, manifest: Mapping[str, Any], contrast: str, frame: str) -> Space:
    is_first = contrast == manifest["reference"]
    path = require_listed(out, manifest, "segmentation.nii.gz" if is_first else _native(contrast))
    grid = read_nifti(path).grid
    matrix = transform_to_reference(out, manifest, contrast)

    def mask(name: str) -> Mask:
        image = read_mask(out, manifest, name)
        if is_first and not same_voxels(image.grid, grid):
            raise IntegrityError(
                "result",
                "a mask does not lie on the voxels of its result",
                file=f"{name}.nii.gz",
                do="run it again",
            )
        return np.asarray(image.data, bool) if is_first else resample_mask(image, grid, matrix)

    def labels() -> Labels:
        return np.asarray(read_nifti(path).data, np.int64)

    names = tuple(structure_names(manifest))
    return Space(label_table(manifest), grid, names, mask, labels, False, frame, matrix)


def _hidden(space: Space, table: LabelTable, name: str) -> Mask:
    """Where a label map shows tumor instead of the structures of a name, or a union of names."""
    own = {part for o in table.organs if o.name in name.split("+") for part in o.tumor}
    if not space.hides or not _anatomy(table, name):
        return np.zeros(space.grid.shape, bool)
    return np.isin(space.labels(), [t.index for t in table.tumor if t.name not in own])


def _anatomy(table: LabelTable, name: str) -> bool:
    """Whether a name, or a union of names, denotes normal structures that tumor may hide."""
    return any(table.is_anatomy(o) for o in table.organs if o.name in name.split("+"))


def _without_reference(space: Space, compared: set[str]) -> list[str]:
    left = [n for n in space.names if n not in compared and space.mask(n).any()]
    return [f"structures of the result without a reference: {shortened(left)}"] if left else []
