"""Write labels for 3D Slicer (`.seg.nrrd`, color table) and ITK-SNAP (label descriptions)."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid
from tumoar.io.dicom_file import LPS_TO_RAS
from tumoar.io.files import replace_file
from tumoar.io.rois import NOT_REVIEWED, Roi
from tumoar.vocabulary.errors import IntegrityError
from tumoar.vocabulary.labels import Code

CATEGORIES = {
    "ORGAN": Code("123037004", "Anatomical Structure"),
    "": Code("49755003", "Morphologically Altered Structure"),
}
"""SNOMED categories of the terminology of 3D Slicer: organs, and everything else."""
UNNAMED = Code("85756007", "Tissue")
TERMINOLOGY = "Segmentation category and type - DICOM master list"
ITKSNAP_HEAD = """\
################################################
# ITK-SnAP Label Description File
# File format:
# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL
# Fields:
#    IDX:   Zero-based index
#    -R-:   Red color component (0..255)
#    -G-:   Green color component (0..255)
#    -B-:   Blue color component (0..255)
#    -A-:   Label transparency (0.00 .. 1.00)
#    VIS:   Label visibility (0 or 1)
#    IDX:   Label mesh visibility (0 or 1)
#  LABEL:   Label description
################################################
"""

Volume = npt.NDArray[np.uint8]


def write_color_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of `segmentation.tsv` as a color table of 3D Slicer; its names contain no spaces."""
    lines = ["# Color table file: tumoar, automatic, unreviewed; research use only"]
    for row in rows:
        red, green, blue = _bytes(row["color"])
        alpha = 255 if row["index"] else 0
        lines.append(f"{row['index']} {'_'.join(_name(row).split())} {red} {green} {blue} {alpha}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_itksnap(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of `segmentation.tsv` as label descriptions of ITK-SNAP."""
    lines = []
    for row in rows:
        red, green, blue = _bytes(row["color"])
        shown = int(row["index"] != 0)
        name = _name(row).replace('"', "'")
        lines.append(
            f'{row["index"]:5d} {red:5d} {green:4d} {blue:4d} {shown:8d} {shown:2d} {shown:2d}    "{name}"'
        )
    path.write_text(ITKSNAP_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def _name(row: Mapping[str, Any]) -> str:
    """Name of a label, such as `left hippocampus (Hippocampus_L)`; unnamed air is the clear label."""
    if row["index"] == 0:
        return "Clear Label"
    return f"{row['name']} ({row['tg263']})" if row["tg263"] else str(row["name"])


def _bytes(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


# ---- .seg.nrrd ---------------------------------------------------------------------------------------------


def write_seg_nrrd(path: Path, rois: Sequence[Roi], grid: Grid) -> None:
    """Write structures, which may overlap, as one segmentation of 3D Slicer; read it back and compare.

    Structures that do not overlap share a layer, in which each has a value of its own. Empty structures are
    segments without voxels.
    """
    layers, places = arrange_layers([roi.mask for roi in rois], grid.shape)
    header = _header(rois, places, grid, len(layers))
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed:
        packed.write(np.stack(layers, 0).tobytes(order="F"))
    with replace_file(path) as temporary:
        temporary.write_bytes(header.encode() + stream.getvalue())
        named = temporary.with_suffix(".nrrd")
        temporary.rename(named)  # readers choose the format by the suffix
        try:
            _require_same(named, rois, places, grid, path.name)
        finally:
            named.rename(temporary)


def arrange_layers(
    masks: Sequence[npt.NDArray[np.bool_]], shape: tuple[int, int, int]
) -> tuple[list[Volume], list[tuple[int, int]]]:
    """Layers of label values, and layer and value of every mask; each goes to the first layer with room."""
    layers: list[Volume] = [np.zeros(shape, np.uint8)]
    used, places = [0], []
    for mask in masks:
        number = next((n for n, layer in enumerate(layers) if used[n] < 255 and not layer[mask].any()), None)
        if number is None:
            number = len(layers)
            layers.append(np.zeros(shape, np.uint8))
            used.append(0)
        used[number] += 1
        layers[number][mask] = used[number]
        places.append((number, used[number]))
    return layers, places


def _header(rois: Sequence[Roi], places: Sequence[tuple[int, int]], grid: Grid, layers: int) -> str:
    affine = LPS_TO_RAS @ grid.affine
    directions = " ".join(_vector(affine[:3, axis]) for axis in range(3))
    shape = " ".join(map(str, grid.shape))
    several = layers > 1  # then the layers are a list, in front of the axes of space
    lines = [
        "NRRD0004",
        "# automatic, unreviewed; research use only",
        "type: unsigned char",
        f"dimension: {3 + several}",
        "space: left-posterior-superior",
        f"sizes: {layers} {shape}" if several else f"sizes: {shape}",
        f"space directions: none {directions}" if several else f"space directions: {directions}",
        f"kinds: {'list ' if several else ''}domain domain domain",
        "encoding: gzip",
        f"space origin: {_vector(affine[:3, 3])}",
        *_segments(rois, places),
        "Segmentation_ContainedRepresentationNames:=Binary labelmap|",
        "Segmentation_MasterRepresentation:=Binary labelmap",  # its name until version 5.6
        "Segmentation_SourceRepresentation:=Binary labelmap",
        "Segmentation_ReferenceImageExtentOffset:=0 0 0",
    ]
    return "\n".join(lines) + "\n\n"


def _segments(rois: Sequence[Roi], places: Sequence[tuple[int, int]]) -> Iterator[str]:
    for n, (roi, (layer, value)) in enumerate(zip(rois, places)):
        category = CATEGORIES.get(roi.kind, CATEGORIES[""])
        kind = roi.code or UNNAMED
        entry = f"{TERMINOLOGY}~{_coded(category)}~{_coded(kind)}~^^~Anatomic codes - DICOM master list~^^~^^"
        review = NOT_REVIEWED.label
        fields = {
            "Color": " ".join(f"{v / 255:.6g}" for v in roi.rgb),
            "ColorAutoGenerated": 0,
            "Extent": _extent(roi.mask),
            "ID": roi.name,
            "LabelValue": value,
            "Layer": layer,
            "Name": roi.name,
            "NameAutoGenerated": 0,
            "Tags": f"Segmentation.Status:inprogress|TerminologyEntry:{entry}|tumoar.Review:{review}|",
        }
        yield from (f"Segment{n}_{key}:={text}" for key, text in fields.items())


def _coded(code: Code) -> str:
    return f"SCT^{code.value}^{code.meaning}"


def _extent(mask: npt.NDArray[np.bool_]) -> str:
    """First and last index along each axis; the first is larger if the mask is empty."""
    ends = []
    for axis in range(3):
        there = np.flatnonzero(mask.any(tuple(a for a in range(3) if a != axis)))
        ends += [int(there[0]), int(there[-1])] if len(there) else [0, -1]
    return " ".join(map(str, ends))


def _vector(values: npt.NDArray[np.float64]) -> str:
    return f"({','.join(f'{v + 0.0:.17g}' for v in values)})"


def _require_same(
    written: Path, rois: Sequence[Roi], places: Sequence[tuple[int, int]], grid: Grid, name: str
) -> None:
    """Read the file with SimpleITK and compare position and voxels of every structure."""
    import SimpleITK as sitk  # noqa: N813

    found = sitk.ReadImage(str(written))
    values = sitk.GetArrayFromImage(found).T.reshape(-1, *grid.shape)  # vectors are the first axis of .T
    steps = np.array(found.GetDirection()).reshape(3, 3) * found.GetSpacing()
    affine = np.vstack([np.column_stack([steps, found.GetOrigin()]), [0, 0, 0, 1]])
    is_there = np.abs(LPS_TO_RAS @ affine - grid.affine).max() < 1e-3
    if not is_there or not all(
        np.array_equal(values[layer] == value, roi.mask) for roi, (layer, value) in zip(rois, places)
    ):
        raise IntegrityError("written", "written segments differ from the structures", file=name)
