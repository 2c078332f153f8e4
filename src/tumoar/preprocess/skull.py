"""Head mask and skull-stripping detection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage

from tumoar.geometry.distance import depth
from tumoar.vocabulary.errors import ChannelError

Mask = npt.NDArray[np.bool_]

LEAST_PART = 0.1  # of the largest component: keeps a scalp around a brain, not noise or a headrest
AROUND = (2.0, 12.0)  # mm outside the surface, air in a whole head
BENEATH = (3.0, 15.0)  # mm inside the surface, skull in a whole head
DARK = 0.4  # of the median on the compressed scale: bone in MR
LEAST_AIR = 0.5
LEAST_SKULL = 0.025  # measured: below 0.008 in skull-stripped images, above 0.07 in whole heads
CERTAIN = 2.0  # factor from LEAST_SKULL beyond which detection is clear


def find_head(values: npt.NDArray[np.floating]) -> Mask:
    """Mask of the large bright components of compressed intensities, with holes filled in every plane."""
    bright = sitk.GetArrayFromImage(sitk.OtsuThreshold(sitk.GetImageFromArray(values), 0, 1)) > 0
    parts, _ = ndimage.label(bright)
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    bright = (sizes >= LEAST_PART * sizes.max())[parts] & bright
    for axis in range(3):
        planes = np.moveaxis(bright, axis, 0)
        planes[:] = [ndimage.binary_fill_holes(plane) for plane in planes]
    return bright


@dataclass(frozen=True)
class SkullEvidence:
    """Measures around and beneath the surface of the bright part of an image.

    `air` is the fraction of voxels around it that have a value; `skull` the fraction beneath it that looks
    like bone.
    """

    air: float
    skull: float

    @property
    def is_stripped(self) -> bool:
        """Whether there is nothing around the surface and no bone beneath it."""
        return self.air < LEAST_AIR and self.skull < LEAST_SKULL

    @property
    def is_clear(self) -> bool:
        """Whether the measures are far from the thresholds."""
        if self.is_stripped:
            return self.skull < LEAST_SKULL / CERTAIN
        return self.air >= LEAST_AIR or self.skull > LEAST_SKULL * CERTAIN


def measure_skull(
    values: npt.NDArray[np.floating], valid: Mask, head: Mask, mm: float, bone: float | None = None
) -> SkullEvidence:
    """Measure around and beneath the surface of the head; bone is dark in MR, above `bone` in CT."""
    width = int(np.ceil(AROUND[1] / mm)) + 1
    values, valid, head = (np.pad(array, width) for array in (values, valid, head))
    beneath = depth(head, [mm] * 3)
    is_bone = values < DARK * np.median(values[head]) if bone is None else values > bone
    return SkullEvidence(
        air=_fraction(valid, (beneath < -AROUND[0]) & (beneath >= -AROUND[1])),
        skull=_fraction(is_bone, (beneath > BENEATH[0]) & (beneath <= BENEATH[1])),
    )


def decide_stripped(evidence: SkullEvidence, name: str, requested: bool | None) -> bool:
    """Skull-stripped or not: as requested, unless the image clearly contradicts it (B40)."""
    if requested is None or requested == evidence.is_stripped:
        return evidence.is_stripped
    if evidence.is_clear:
        words = ("a whole head", "skull-stripped")
        raise ChannelError(
            "B40",
            f"{name} is {words[evidence.is_stripped]}, not {words[requested]}",
            found=f"{evidence.skull:.1%} bone beneath the surface, {evidence.air:.0%} filled around it",
            do="omit --skull-stripped and --whole-head",
        )
    return requested


def _fraction(flags: Mask, where: Mask) -> float:
    return int(np.count_nonzero(flags & where)) / max(1, int(np.count_nonzero(where)))
