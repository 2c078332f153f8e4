"""Pictures of an outline with the bands in which an expert's border lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.report.pictures import PLANES, outlines, plane, png, zoomed
from tumoar.report.volumes import Windowed, center
from tumoar.result.folder import WHOLE_ROW
from tumoar.result.prediction import BANDS, CORE, WHOLE_TUMOR
from tumoar.result.segmentation import Segmentation

TINTS = {0.9: 0.35, 0.5: 0.7}
"""Weight of the color in a band, by its probability."""
COLOR = (255, 140, 26)
"""RGB of bands: orange shows on bright tumor and on dark brain."""


def band_pictures(result: Segmentation, images: list[Windowed], contrast: str) -> list[dict[str, Any]]:
    """Core and whole tumor, as far as they are calibrated, in three planes of one contrast."""
    names = [c.name for c in result.case.contrasts]
    image, at = images[names.index(contrast)][0], center(result)
    masks = {CORE: result.votes.y == 1, WHOLE_TUMOR: result.votes.z == 1}
    names_shown = {CORE: "tumor core", WHOLE_TUMOR: WHOLE_ROW}
    out = []
    for part, predicted in result.tumor_predictions.items():
        chance = predicted.probability()
        for where, axis in PLANES:
            gray, p, mask = (zoomed(plane(v, axis, int(at[axis]))) for v in (image, chance, masks[part]))
            picture = png(_paint(gray, p, mask))
            out.append({"name": names_shown[part], "contrast": contrast, "plane": where, "png": picture})
    return out


def _paint(
    gray: npt.NDArray[np.uint8], chance: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    rgb = np.repeat(gray[..., None], 3, 2).astype(np.float64)
    for share, weight in TINTS.items():
        low, high = BANDS[share]
        band = (chance > low) & (chance < high)
        rgb[band] = (1 - weight) * gray[band][:, None] + weight * np.array(COLOR)
    rgb[outlines(mask.astype(np.uint8))] = 255
    return np.rint(rgb).astype(np.uint8)
