"""Volumes for the viewer: bytes on the grid of the case, small enough for a page."""

from __future__ import annotations

import gzip
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import HOUNSFIELD_UNIT, Grid
from tumoar.numerics.threads import map_threads
from tumoar.report.lines import Line
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.contrasts import Contrast
from tumoar.vocabulary.errors import UnreadableFileError

Bytes = npt.NDArray[np.uint8]
Field = npt.NDArray[np.floating]
Windowed = tuple[Bytes, tuple[float, float]]

BUDGET = 15e6
"""Compressed bytes of all contrasts together, to keep pages below 25 MB."""
GRAY_LEVELS = (256, 128, 64, 32, 16)
PERCENTILES = (0.5, 99.5)
CT_WINDOW = (-100.0, 200.0)  # HU: soft tissue; a bone window would not show the brain
AIR = 0.1
"""MR below this fraction of the median of the brain is air."""


def intensities(D: Field, contrast: Contrast) -> Field:
    """MR intensities or Hounsfield units from the data of the model; NaN where undefined."""
    return np.exp(D) if contrast.is_mr else D * np.float32(HOUNSFIELD_UNIT)


def unit(contrast: Contrast) -> str:
    """Unit of a channel of `Case.D`."""
    return "log intensity" if contrast.is_mr else "HU"


def brain(result: Segmentation) -> npt.NDArray[np.bool_]:
    """(X, Y, Z) mask of the brain by vote, whether or not tumor covers it."""
    return result.table.in_brain[result.votes.l]


def center(result: Segmentation) -> npt.NDArray[np.int64]:
    """(3,) initial voxel: center of the tumor core, else of the tumor, the brain, or the image."""
    for mask in (result.votes.y == 1, result.votes.z == 1, brain(result)):
        if mask.any():
            inside = np.argwhere(mask)
            middle = np.median(inside, axis=0)
            return inside[((inside - middle) ** 2).sum(1).argmin()]
    return np.array(result.case.grid.shape) // 2


def apply_windows(result: Segmentation) -> list[Windowed]:
    """Each contrast as bytes from black to white, and the corresponding intensities."""
    inside = brain(result)

    def one(n: int) -> Windowed:
        contrast = result.case.contrasts[n]
        values = intensities(result.case.D[n], contrast)
        low, high = CT_WINDOW
        if contrast.is_mr:
            seen = values[inside & np.isfinite(values)] if inside.any() else values[np.isfinite(values)]
            tissue = values[values > AIR * np.median(seen)] if len(seen) else np.array([0.0, 1.0])
            low, high = (float(v) for v in np.percentile(tissue, PERCENTILES))
        scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
        return np.rint(255 * np.nan_to_num(scaled)).astype(np.uint8), (low, high)

    return map_threads(one, range(len(result.case.contrasts)))


def contrast_volumes(result: Segmentation, images: list[Windowed]) -> list[dict[str, Any]]:
    """The contrasts, with as many gray levels as fit into the page."""
    for levels in GRAY_LEVELS:
        packed = map_threads(_with_levels(levels, result.case.grid), [image for image, _ in images])
        if sum(map(len, packed)) <= BUDGET * 4 / 3:
            break
    return [
        {"name": contrast.name, "window": list(window), "nifti": nifti}
        for contrast, (_, window), nifti in zip(result.case.contrasts, images, packed)
    ]


def _with_levels(levels: int, grid: Grid) -> Callable[[Bytes], str]:
    step = 256 // levels
    return lambda image: pack(image // step * step, grid)


def label_volume(result: Segmentation) -> str:
    """The exclusive label map."""
    return pack(result.labels, result.case.grid, intent="label")


def map_volumes(result: Segmentation, colors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Vote fractions of each organ (255 is 1) and entropy (255 is `top`, in nats)."""
    grid = result.case.grid

    def row(name: str) -> dict[str, Any] | None:
        probability = result.probability(name)
        if not probability.any():
            return None
        nifti = pack(np.rint(255 * probability).astype(np.uint8), grid)
        return {"name": name, "color": colors[name], "top": 1.0, "nifti": nifti}

    rows = map_threads(row, [organ.name for organ in result.table.organs])
    entropy, top = entropy_bytes(result)
    last = {"name": "entropy", "color": None, "top": top, "nifti": pack(entropy, grid)}
    return [*filter(None, rows), last]


def entropy_bytes(result: Segmentation) -> tuple[Bytes, float]:
    """Entropy as bytes, and what 255 means, in nats."""
    entropy = result.entropy()
    top = max(float(entropy.max()), 1e-6)
    return np.rint(255 / top * entropy).astype(np.uint8), top


def pack_line(line: Line, grid: Grid) -> dict[str, Any]:
    """A structure that is drawn as a line."""
    nifti = pack(line.mask.astype(np.uint8), grid)
    return {"name": line.name, "color": line.color, "style": line.style, "nifti": nifti}


def unpack(nifti: str, grid: Grid) -> Bytes:
    """Voxels of a packed volume, which must have the shape of the grid."""
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError

    try:
        voxels = np.asarray(nib.Nifti1Image.from_bytes(gzip.decompress(b64decode(nifti))).dataobj)
    except (ImageFileError, OSError, ValueError, EOFError) as error:
        raise _damaged("a volume") from error
    if voxels.shape != grid.shape or voxels.dtype != np.uint8:
        raise _damaged("a volume of another size")
    return voxels


def _damaged(found: str) -> UnreadableFileError:
    do = "segment again, or restore the page"
    return UnreadableFileError("report", "the report's data are damaged", found=found, do=do)


def pack(volume: Bytes, grid: Grid, intent: str = "none") -> str:
    """Gzipped NIfTI in base64, reproducible to the byte."""
    import nibabel as nib

    image = nib.Nifti1Image(volume, grid.affine)
    image.header.set_intent(intent)
    return b64encode(gzip.compress(image.to_bytes(), 6, mtime=0)).decode("ascii")
