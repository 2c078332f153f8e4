"""Doses to structures of a finished result, with its samples, or of a structure set.

Outline and samples are treated alike: every sample is resampled to the voxels of the outline and voted on in
the same way, and both are divided into the same number of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.contours import Outline, cut_outline, find_gap
from tumoar.geometry.image import Grid, Image, frame_digest
from tumoar.geometry.pieces import cut_mask
from tumoar.inference.tally import Votes
from tumoar.io.identity import can_compare, is_same_person, require_patient
from tumoar.io.nifti import read_nifti
from tumoar.io.rois import look_of, look_of_target
from tumoar.io.rtstruct import read_rtstruct
from tumoar.numerics.threads import map_threads
from tumoar.radiotherapy.dvh import Dvh, Sampled, dvh, thin_dvh
from tumoar.result.folder import ANATOMY, read_manifest
from tumoar.result.masks import label_table
from tumoar.result.native import HALF, deliver_sample
from tumoar.result.segmentation import organ_mask
from tumoar.result.stored import Stored
from tumoar.result.stored_predictions import draw_structure
from tumoar.vocabulary.aliases import canonical_name, rename
from tumoar.vocabulary.config import VoteRule
from tumoar.vocabulary.errors import GeometryError, UnreadableFileError
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable, Organ, default_labels
from tumoar.vocabulary.notes import Note, find_doubts

TARGETS = ("CTV", "PTV")  # our names besides the organs
NAMELESS = "the structures name no patient or no frame of reference: check that they belong to this patient"
NOT_COMPARED = (
    "the patient of the dose could not be compared with that of the structures: check that they are the same"
)
PALETTE = ("#3c5fa8", "#e8893f", "#2ca02c", "#c81e1e", "#8e5bd0", "#7a5c3e", "#d252a8", "#5a5a5a", "#9aa51c")
DRAWN = 50
"""Structures that are drawn for the band of a calibrated one."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Dosed:
    """A structure and its histogram; `given` is the name in its file, if different."""

    name: str
    color: str
    found: Sampled
    given: str = ""
    lacking: str = ""  # what may be missing, and with it the hottest part


@dataclass(frozen=True, eq=False)
class Measured:
    """Structures of one file or folder, and notes on reading it.

    `doubt` says what could not be checked about its identity; `empty` are the names, ours if matched, of
    structures without closed contours.
    """

    structures: tuple[Dosed, ...]
    doubt: str = ""
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def measure_doses(
    path: Path,
    dose: Image,
    person: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    only: str | None = None,
) -> Measured:
    """Dose to every structure of a result folder or an RTSTRUCT file; `person` is the patient of the dose.

    `names` maps structures of RTSTRUCT files to our names; known aliases are matched without it. `only`
    selects one structure of a result.
    """
    if not path.is_dir():
        return _of_file(path, dose, person, names or {})
    manifest = read_manifest(path)
    patient, frame = manifest.get("patient", {}), _reference_frame(manifest)
    is_compared = require_patient(patient, manifest.get("key", ""), person, "the dose")
    require_frame(frame, dose)
    doubt = _doubt(bool(patient and frame), is_compared or not any(person))
    return Measured(tuple(_of_result(path, manifest, dose, only)), doubt)


def _doubt(is_named: bool, is_compared: bool) -> str:
    return NAMELESS if not is_named else "" if is_compared else NOT_COMPARED


def organs_of(path: Path) -> list[str]:
    """Names of the organs of a result folder; none for a file."""
    return [organ.name for organ in label_table(read_manifest(path)).organs] if path.is_dir() else []


def _of_file(path: Path, dose: Image, person: Sequence[str], names: Mapping[str, str]) -> Measured:
    read = read_rtstruct(path)
    if not read.outlines:
        raise UnreadableFileError("rtstruct", "no structure with contours", file=path.name)
    if not is_same_person(read.person, person):
        raise GeometryError(
            "B34", "dose and structures are from different patients", do="give files of one patient"
        )
    require_frame(frame_digest(read.frame), dose)
    table = default_labels()  # a file has no table
    colors = {organ.name: look_of(table, organ)[0] for organ in table.organs}
    theirs = [outline.name for outline in read.outlines]
    here = {name: new for name, new in names.items() if name in theirs}
    ours = rename(theirs, here, (*TARGETS, *names.values()))
    found = []
    middles: dict[str, npt.NDArray[np.float64]] = {}
    for number, outline in enumerate(read.outlines):
        name = ours[outline.name] or outline.name
        color = colors.get(name, PALETTE[number % len(PALETTE)])
        pieces = cut_outline(outline)
        if pieces.volumes.any():
            middles[name] = np.average(pieces.points, axis=0, weights=pieces.volumes)
        curve = Sampled(dvh(pieces, dose))
        given = outline.name if name != outline.name else ""
        found.append(Dosed(name, color, curve, given, _describe_missing(outline)))
    is_compared = can_compare(read.person, person) or not any(person)
    doubt = _doubt(bool(any(read.person) and read.frame), is_compared)
    empty = [canonical_name(name) or name for name in read.empty]
    return Measured(tuple(found), doubt, (*read.notes, *_note_swapped(middles)), tuple(empty))


def _describe_missing(outline: Outline) -> str:
    """What may be missing from a structure."""
    if not outline.is_whole:
        return "open contours of it were left out"
    gap = find_gap(outline)
    return "" if gap is None else f"gap of {gap:.3g} mm without contours: slices may be missing"


def _note_swapped(middles: Mapping[str, npt.NDArray[np.float64]]) -> Iterator[str]:
    """Note every pair whose left structure does not lie left of the right one (in RAS, x points right)."""
    for left, middle in middles.items():
        right = f"{left.removesuffix('_L')}_R"
        other = middles.get(right) if left.endswith("_L") else None
        if other is not None and middle[0] >= other[0]:
            yield f"{left} does not lie left of {right}: were the sides swapped?"


def _of_result(
    out: Path, manifest: Mapping[str, Any], dose: Image, only: str | None = None
) -> Iterator[Dosed]:
    table = label_table(manifest)
    known = {organ.name: organ for organ in table.organs}
    names = [row["name"] for row in (*manifest["volumes"], *manifest.get("margins", ()))]
    names = [name for name in names if only in (None, name)]
    drawn = _measure_drawn(out, manifest, names, dose)
    others = [name for name in names if name in known and name not in drawn]
    samples = _measure_samples(out, manifest, others, dose)
    doubts = find_doubts(map(Note.from_dict, manifest["notes"]))
    if manifest.get("skull_stripped"):
        gone = "skull-stripped images do not show it"
        doubts |= {name: gone for name in names if name in known and _is_outside_brain(table, known[name])}
    for name in names:
        image = read_nifti(out / "structures" / f"{name}.nii.gz")
        color = (look_of(table, known[name]) if name in known else look_of_target(table))[0]
        mask = Image(np.asarray(np.asarray(image.data, np.uint8) > 0, np.uint8), image.grid)
        curves, calibrated_on = drawn.get(name, (samples.get(name, ()), ""))
        found = Sampled(dvh(cut_mask(mask), dose), curves, calibrated_on=calibrated_on)
        yield Dosed(name, color, found, lacking=doubts.get(name, ""))


def _is_outside_brain(table: LabelTable, organ: Organ) -> bool:
    """Whether skull stripping has removed an organ, or part of it."""
    return bool(organ.structures) and not all(
        table.structures[table.l(name)].in_brain for name in organ.structures
    )


def _measure_drawn(
    out: Path, manifest: Mapping[str, Any], names: Sequence[str], dose: Image
) -> dict[str, tuple[tuple[Dvh, ...], str]]:
    """Histograms of structures as experts may draw them, and on what they were calibrated, if they were."""
    result = Stored(out, dict(manifest))
    organs = {organ.name for organ in result.table.organs}
    found = {name: draw_structure(result, name, DRAWN) for name in names if name in organs}

    def curve(mask: Mask) -> Dvh:
        box = ndi.find_objects(mask.astype(np.uint8))[0] if mask.any() else (slice(0, 1),) * 3
        grid = _part(result.grid, box)
        return thin_dvh(dvh(cut_mask(Image(mask[box].astype(np.uint8), grid)), dose))

    return {
        name: (tuple(curve(mask) for mask in drawn[1]), drawn[0])
        for name, drawn in found.items()
        if drawn is not None
    }


def _measure_samples(
    out: Path, manifest: Mapping[str, Any], names: Sequence[str], dose: Image
) -> dict[str, tuple[Dvh, ...]]:
    """Histograms of structures in all saved samples; organs are not cut by tumor."""
    table = label_table(manifest)
    pairs = [name for name in sorted(manifest["files"]) if name.endswith(ANATOMY)]
    if not pairs:
        return {}
    outlined = read_nifti(out / "segmentation.nii.gz")
    islands = _islands(out, manifest, table, outlined)
    rule: VoteRule = "majority" if manifest.get("config", {}).get("vote") == "majority" else "volume"
    found: dict[str, list[Dvh]] = {name: [] for name in names}
    for pair in pairs:
        anatomy = read_nifti(out / pair)
        whole = read_nifti(out / pair.replace(ANATOMY, ".nii.gz"))
        box = _box(anatomy, outlined.grid)
        grid = _part(outlined.grid, box)
        left_out = None if islands is None else islands[box]
        votes = deliver_sample(table, _votes(table, anatomy, whole), whole.grid, grid, left_out, rule)

        def curve(name: str, votes: Votes = votes, grid: Grid = grid) -> Dvh:
            mask = organ_mask(table, table.organ(name), votes)
            return thin_dvh(dvh(cut_mask(Image(mask.astype(np.uint8), grid)), dose))

        for name, histogram in zip(names, map_threads(curve, names)):
            found[name].append(histogram)
    return {name: tuple(curves) for name, curves in found.items()}


def _votes(table: LabelTable, anatomy: Image, whole: Image) -> Votes:
    """A sample from its two label maps: anatomy only, and tumor over anatomy."""
    position = np.zeros(256, np.uint8)
    position[table.indices] = np.arange(table.K)
    states = [(t.index, *TUMOR_STATES[t.name]) for t in table.tumor]
    z = np.isin(whole.data, [index for index, z, _ in states if z])
    y = np.isin(whole.data, [index for index, _, y in states if y])
    return Votes(position[np.asarray(anatomy.data, np.uint8)], z.astype(np.uint8), y.astype(np.uint8))


def _islands(out: Path, manifest: Mapping[str, Any], table: LabelTable, outlined: Image) -> Mask | None:
    """Voxels that are tumor in most samples but not in the outline; None if fractions were not kept."""
    every = [organ for organ in table.organs if organ.tumor and organ.name != "GTV_residual"]
    files = [f"probabilities/{organ.name}.nii.gz" for organ in every]
    if not all(name in manifest["files"] for name in files):
        return None
    share = sum(np.asarray(read_nifti(out / name).data, np.float32) for name in files)
    return np.asarray((share > HALF) & ~np.isin(outlined.data, [t.index for t in table.tumor]))


def _box(labels: Image, grid: Grid) -> tuple[slice, slice, slice]:
    """Box around all labels except background, with two voxels margin."""
    where = np.nonzero(np.asarray(labels.data))
    ends = [(at.min(), at.max()) for at in where] if len(where[0]) else [(0, 0)] * 3
    corners = np.array(np.meshgrid(*ends)).reshape(3, -1).T
    reached = grid.index(labels.grid.world(corners))
    margin = 2 + np.ceil(labels.grid.spacing.max() / grid.spacing)
    last = np.array(grid.shape) - 1
    low = np.clip(np.floor(reached.min(0) - margin), 0, last).astype(int)
    high = np.clip(np.ceil(reached.max(0) + margin), low, last).astype(int)
    x, y, z = (slice(int(a), int(b) + 1) for a, b in zip(low, high))
    return x, y, z


def _part(grid: Grid, box: tuple[slice, slice, slice]) -> Grid:
    """The voxels of a grid inside a box."""
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world([part.start for part in box])
    x, y, z = (part.stop - part.start for part in box)
    return Grid((x, y, z), affine, grid.frame)


def _reference_frame(manifest: Mapping[str, Any]) -> str:
    given = [i for i in manifest.get("inputs", []) if i["contrast"] == manifest.get("reference")]
    return str(given[0].get("frame", "")) if given else ""


def require_frame(ours: str, dose: Image) -> None:
    """Refuse dose and structures in different frames of reference, if both are known."""
    theirs = frame_digest(dose.grid.frame)
    if ours and theirs and ours != theirs:
        raise GeometryError(
            "B33",
            "dose and structures have different frames of reference",
            do="segment with the planning CT as reference, or export onto it first",
        )
