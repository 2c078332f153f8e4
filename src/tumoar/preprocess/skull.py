"""Where the head is, and whether the skull has been taken off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage

from tumoar.geometry.distance import depth
from tumoar.vocabulary.errors import ChannelError

Mask = npt.NDArray[np.bool_]

LEAST_PART = 0.1  # of the largest part: a scalp around a brain, not specks of noise or a headrest
AROUND = (2.0, 12.0)  # mm outside the surface, where a whole head has air
BENEATH = (3.0, 15.0)  # mm inside the surface, where a whole head has its skull
DARK = 0.4  # of the median on the compressed scale: bone in MR
LEAST_AIR = 0.5
LEAST_SKULL = 0.025  # seen: below 0.008 in skull-stripped images, above 0.07 in whole heads
CERTAIN = 2.0  # times more or less than that is outright


def head_mask(values: npt.NDArray[np.floating]) -> Mask:
    """The large bright parts of compressed intensities, filled in every plane: brain, scalp and between."""
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
    values: npt.NDArray[np.floating], valid: Mask, head: Mask, mm: float, bone: float | None = None
) -> SkullEvidence:
    """Look around and beneath the surface of the head; bone is dark in MR, above `bone` in CT."""
    width = int(np.ceil(AROUND[1] / mm)) + 1
    values, valid, head = (np.pad(array, width) for array in (values, valid, head))
    beneath = depth(head, [mm] * 3)
    is_bone = values < DARK * np.median(values[head]) if bone is None else values > bone
    return SkullEvidence(
        air=_share(valid, (beneath < -AROUND[0]) & (beneath >= -AROUND[1])),
        skull=_share(is_bone, (beneath > BENEATH[0]) & (beneath <= BENEATH[1])),
    )


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
