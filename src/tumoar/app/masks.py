"""Bring masks drawn on the reference image to the grid of the case."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.app.pipeline import Given
from tumoar.geometry.image import Case, Image
from tumoar.geometry.orientation import reorient
from tumoar.geometry.resample import resample
from tumoar.preprocess.quality import is_label_map
from tumoar.vocabulary.errors import ChannelError, GeometryError


def mask_on(image: Image, case: Case, above: float = 0.0) -> npt.NDArray[np.bool_]:
    """Threshold a mask in the space of the reference, on the grid of the case; a scan is refused."""
    values = np.asarray(image.data)
    if values.dtype != bool and not is_label_map(values):
        raise ChannelError(
            "mask",
            "not a mask",
            file=image.source,
            found=f"values from {values.min():g} to {values.max():g}, too many or no whole numbers",
            do="give 0 outside and 1 inside, and higher values in the core of a tumor",
        )
    turned, _ = reorient(image)
    mask = np.asarray(turned.data, np.float64) > above
    is_there = resample(mask, turned.grid, case.grid) > 0.5
    if not is_there.any():
        raise GeometryError(
            "mask",
            "the mask does not overlap the head",
            file=image.source,
            found=f"{int(mask.sum())} voxels in it",
            do=f"draw it on the {case.reference}",
        )
    return is_there


def fix_tumor_from_mask(image: Image, case: Case) -> Given:
    """Fix the tumor from a mask: 1 is whole tumor; if values above 1 occur, they fix the core as well."""
    z = mask_on(image, case).astype(np.int8)
    if image.data.max() <= 1:
        return Given(z, np.where(z == 1, np.int8(-1), np.int8(0)))
    return Given(z, (mask_on(image, case, 1.0) & (z == 1)).astype(np.int8))
