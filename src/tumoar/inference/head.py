"""Where the head is, and whether the skull has been taken off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage

from tumoar.errors import ChannelError

Mask = npt.NDArray[np.bool_]

AROUND = (2.0, 12.0)  # mm outside the surface, where a whole head has air
BENEATH = (3.0, 15.0)  # mm inside the surface, where a whole head has its skull
DARK = 0.5  # of the median on the compressed scale: bone in MR
LEAST_AIR = 0.5
LEAST_SKULL = 0.03  # measured: below 0.012 in skull-stripped images, above 0.09 in whole heads
CERTAIN = 2.0  # times more or less than that is outright


def head_mask(values: npt.NDArray[np.floating]) -> Mask:
    """The largest bright part of compressed intensities, filled in every plane."""
    bright = sitk.GetArrayFromImage(sitk.OtsuThreshold(sitk.GetImageFromArray(values), 0, 1)) > 0
    parts, count = ndimage.label(bright)
    if count > 1:
        bright = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
    for axis in range(3):
        planes = np.moveaxis(bright, axis, 0)
        planes[:] = [ndimage.binary_fill_holes(plane) for plane in planes]
    return bright


@dataclass(frozen=True)
class SkullEvidence:
    """What surrounds the bright part of an image, and what lies just beneath its surface.

    `air` is the share of voxels around it that have a value at all; `skull` the share beneath it that looks
    like bone.
    """

    air: float
    skull: float

    @property
    def is_stripped(self) -> bool:
        """Nothing around the surface, and no bone beneath it."""
        return self.air < LEAST_AIR and self.skull < LEAST_SKULL

    @property
    def is_outright(self) -> bool:
        """Whether no one could think otherwise."""
        if self.is_stripped:
            return self.skull < LEAST_SKULL / CERTAIN
        return self.air >= LEAST_AIR or self.skull > LEAST_SKULL * CERTAIN


def skull_evidence(
    values: npt.NDArray[np.floating], valid: Mask, mm: float, bone: float | None = None
) -> SkullEvidence:
    """Look for a skull in compressed intensities on a grid of `mm`: dark in MR, above `bone` in CT."""
    width = int(np.ceil(AROUND[1] / mm)) + 1
    values, valid = np.pad(values, width), np.pad(valid, width)
    head = head_mask(values)
    outside, inside = (mm * ndimage.distance_transform_edt(mask) for mask in (~head, head))
    around = (outside > AROUND[0]) & (outside <= AROUND[1])
    beneath = (inside > BENEATH[0]) & (inside <= BENEATH[1])
    if bone is None:
        is_bone = values < DARK * np.median(values[head])
    else:
        is_bone = values > bone
    return SkullEvidence(air=_share(valid, around), skull=_share(is_bone, beneath))


def decide_stripped(evidence: SkullEvidence, name: str, told: bool | None) -> bool:
    """Skull-stripped or not: as told, unless the image says otherwise outright (B40)."""
    if told is None or told == evidence.is_stripped:
        return evidence.is_stripped
    if evidence.is_outright:
        words = ("a whole head", "skull-stripped")
        raise ChannelError(
            "B40",
            f"{name} is {words[evidence.is_stripped]}, not {words[told]}",
            found=f"{evidence.skull:.1%} bone beneath the surface, {evidence.air:.0%} filled around it",
            do="leave the choice to the image",
        )
    return told


def _share(flags: Mask, where: Mask) -> float:
    return int(np.count_nonzero(flags & where)) / max(1, int(np.count_nonzero(where)))
