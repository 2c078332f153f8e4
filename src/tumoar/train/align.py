"""Affine alignment of prepared heads to a common box, by landmarks from their labels.

Landmarks are the centroids of all structures and the extents of the brain. Their mean shape is found by
alternating least squares (generalized Procrustes with affine transforms); each head is then resampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.placement.template import ENDS
from tumoar.train.mesh import CUBE
from tumoar.vocabulary.labels import LabelTable

Points = npt.NDArray[np.float64]
Affine = npt.NDArray[np.float64]
Maps = npt.NDArray[np.uint8]

MARGIN_BELOW = (20.0, 22.0, 30.0)
"""Margin of the box around the brain in mm: left and right, behind, below."""
MARGIN_ABOVE = (20.0, 34.0, 20.0)
"""Margin of the box in mm: right of the brain, in front of the eyes, above the brain."""


@dataclass(frozen=True)
class Alignment:
    """The common box, and the mean landmarks in its voxels by name (`landmark_names`)."""

    shape: tuple[int, int, int]
    landmarks: Mapping[str, Points]

    @classmethod
    def of_card(cls, card: Mapping[str, Any], labels: LabelTable) -> Self:
        """Read from the card of an atlas; landmarks without names are in the order of its label table."""
        given = card["landmarks"]
        if not isinstance(given, Mapping):
            given = dict(zip(landmark_names(labels), given, strict=True))
        x, y, z = (int(n) for n in card["box"])
        return cls((x, y, z), {name: np.array(point, float) for name, point in given.items()})

    def to_card(self) -> dict[str, Any]:
        """Box and landmarks as JSON values."""
        points = {name: point.round(3).tolist() for name, point in self.landmarks.items()}
        return {"box": list(self.shape), "landmarks": points}

    def to_head(self, head: Maps, labels: LabelTable) -> Affine:
        """4x4 matrix from voxels of the box to those of any head, aligned or not."""
        theirs = dict(zip(landmark_names(labels), landmarks(head, labels), strict=True))
        both = [name for name in self.landmarks if name in theirs]
        return fit_affine(np.array([self.landmarks[n] for n in both]), np.array([theirs[n] for n in both]))

    def place(self, head: Maps, labels: LabelTable) -> Maps:
        """Resample a head to the box; values of the result are positions among the trained labels."""
        position = np.zeros(256, np.uint8)
        for k, structure in enumerate(s for s in labels.structures if s.trained):
            position[structure.index] = k
        return position[resample(head, self.to_head(head, labels), self.shape)]


def align(heads: Iterable[Maps], labels: LabelTable) -> Alignment:
    """Find the common box of prepared label maps (indices of the label table, canonical, 1 mm)."""
    marks = np.stack([landmarks(head, labels) for head in heads])
    mean = mean_shape(marks)
    # The last six are the brain's extents, low and high along each axis; the eyes lie farther in front.
    extents = mean[-6:].reshape(3, 2, 3)
    low = np.array([extents[a, 0, a] for a in range(3)]) - MARGIN_BELOW
    high = np.array([extents[a, 1, a] for a in range(3)])
    high[1] = max(high[1], mean[:-7, 1].max() - 12)
    high += MARGIN_ABOVE
    size = np.ceil((high - low) / CUBE).astype(int) * CUBE
    origin = (low + high - size) / 2
    names = landmark_names(labels)
    return Alignment((int(size[0]), int(size[1]), int(size[2])), dict(zip(names, mean - origin, strict=True)))


def landmark_names(labels: LabelTable) -> list[str]:
    """Names of the rows of `landmarks`."""
    return [*_trained_wholes(labels), "brain", *ENDS]


def _trained_wholes(labels: LabelTable) -> list[str]:
    """Names of what has a landmark: parts have that of the whole."""
    return [
        name for name in labels.wholes[1:] if all(labels.structures[l].trained for l in labels.parts(name))
    ]


def landmarks(head: Maps, labels: LabelTable) -> Points:
    """(M, 3) centroids of all trained structures except background, center of the brain, its six extents."""
    whole = np.zeros(256, np.int32)
    whole[labels.indices] = labels.whole_of_l
    boxes = ndi.find_objects(whole[head])
    points = []
    for name in _trained_wholes(labels):
        k = labels.wholes.index(name)
        box = boxes[k - 1]
        points.append(np.argwhere(whole[head[box]] == k).mean(0) + [axis.start for axis in box])
    brain = np.isin(head, labels.indices[labels.in_brain])
    profiles = [brain.sum(other) for other in ((1, 2), (0, 2), (0, 1))]
    center = np.array([(p * np.arange(len(p))).sum() / p.sum() for p in profiles])
    points.append(center)
    for axis, profile in enumerate(profiles):
        for part in (0.02, 0.98):
            point = center.copy()
            point[axis] = np.searchsorted(np.cumsum(profile), part * profile.sum())
            points.append(point)
    return np.array(points)


def mean_shape(marks: npt.NDArray[np.float64], rounds: int = 5) -> Points:
    """(M, 3) mean of landmark sets (S, M, 3) up to affine transforms, with mean size and position."""
    mean = marks.mean(0)
    for _ in range(rounds):
        mean = np.stack([apply(np.linalg.inv(fit_affine(mean, head)), head) for head in marks]).mean(0)
    # The rounds may drift: align the result with the plain average.
    return apply(fit_affine(mean, marks.mean(0)), mean)


def fit_affine(source: Points, target: Points) -> Affine:
    """4x4 least-squares affine transform from source to target points."""
    homogeneous = np.column_stack([source, np.ones(len(source))])
    out = np.eye(4)
    out[:3] = np.linalg.lstsq(homogeneous, target, rcond=None)[0].T
    return out


def apply(affine: npt.NDArray[np.floating], points: Points) -> Points:
    """Apply a 4x4 matrix to points."""
    return points @ affine[:3, :3].T + affine[:3, 3]


def resample(head: Maps, to_head: Affine, shape: tuple[int, int, int]) -> Maps:
    """Resample a head to the voxels of the box by nearest neighbor; 0 outside."""
    return ndi.affine_transform(
        head, to_head[:3, :3], to_head[:3, 3], shape, order=0, mode="constant", cval=0
    )
