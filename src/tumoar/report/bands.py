"""Pictures of an outline with the bands in which an expert's border lies."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.model.calibration import CORE, WHOLE_TUMOR
from tumoar.report.pictures import PLANES, ZOOM, outlines, plane, png, zoomed
from tumoar.report.volumes import Windowed, center
from tumoar.result.folder import WHOLE_ROW
from tumoar.result.prediction import BANDS, Prediction
from tumoar.result.segmentation import Segmentation

TINTS = {0.9: 0.35, 0.5: 0.7}
"""Weight of the color in a band, by its probability."""
COLOR = (255, 140, 26)
"""RGB of bands: orange shows on bright tumor and on dark brain."""
NEAR = 4
"""Pixels per voxel of an organ, in a picture of its surroundings; for the brain, as many as for tumor."""
SMALL = 100
"""Voxels along the longest side of a structure with its surroundings, if it is shown larger."""

Mask = npt.NDArray[np.bool_]


def band_pictures(
    result: Segmentation, images: list[Windowed], contrast: str, organs: Collection[str]
) -> list[dict[str, Any]]:
    """Core, whole tumor and these organs, as far as they are calibrated, in three planes of one contrast."""
    names = [c.name for c in result.case.contrasts]
    image, at = images[names.index(contrast)][0], center(result)
    masks = {CORE: result.votes.y == 1, WHOLE_TUMOR: result.votes.z == 1}
    names_shown = {CORE: "tumor core", WHOLE_TUMOR: WHOLE_ROW}
    out = []
    for part, predicted in result.tumor_predictions.items():
        for where, picture in _planes(image, predicted.probability(), masks[part], at, ZOOM):
            out.append({"name": names_shown[part], "contrast": contrast, "plane": where, "png": picture})
    for organ in result.table.organs:
        found = result.prediction(organ.name) if organ.name in organs and not organ.tumor else None
        if found is not None:
            for where, picture in _around(image, found, Segmentation.mask(result, organ.name)):
                out.append({"name": organ.name, "contrast": contrast, "plane": where, "png": picture})
    return out


def _around(image: npt.NDArray[np.uint8], predicted: Prediction, mask: Mask) -> Iterator[tuple[str, str]]:
    """Planes through the middle of an organ, of the box around it."""
    box = predicted.border.box
    inside = np.argwhere(mask[box])
    at = inside[((inside - np.median(inside, axis=0)) ** 2).sum(1).argmin()]
    zoom = NEAR if max(s.stop - s.start for s in box) <= SMALL else ZOOM
    return _planes(image[box], predicted.probability()[box], mask[box], at, zoom)


def _planes(
    image: npt.NDArray[np.uint8],
    chance: npt.NDArray[np.float32],
    mask: Mask,
    at: npt.NDArray[np.int64],
    zoom: int,
) -> Iterator[tuple[str, str]]:
    for where, axis in PLANES:
        gray, p, outlined = (zoomed(plane(v, axis, int(at[axis])), zoom) for v in (image, chance, mask))
        yield where, png(_paint(gray, p, outlined))


def _paint(gray: npt.NDArray[np.uint8], chance: npt.NDArray[np.float32], mask: Mask) -> npt.NDArray[np.uint8]:
    rgb = np.repeat(gray[..., None], 3, 2).astype(np.float64)
    for share, weight in TINTS.items():
        low, high = BANDS[share]
        band = (chance > low) & (chance < high)
        rgb[band] = (1 - weight) * gray[band][:, None] + weight * np.array(COLOR)
    rgb[outlines(mask.astype(np.uint8))] = 255
    return np.rint(rgb).astype(np.uint8)
