"""Rigid registration of two images of one head, with measures of its reliability.

SimpleITK optimizes Mattes mutual information from several starts, coarse to fine. It is seeded and
single-threaded, so that results are reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk  # noqa: N813
from scipy import ndimage
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample, to_itk
from tumoar.preprocess.skull import find_head

Matrix = npt.NDArray[np.float64]
Points = npt.NDArray[np.float64]

COARSE, FINE = 4.0, 2.0  # mm; the error at 2 mm is a few tenths of a millimeter
SAMPLES = {COARSE: 5_000, FINE: 20_000}
STEPS = {COARSE: (4.0, 0.1), FINE: (1.0, 0.02)}  # mm, first and last
MOST_STEPS = 100
BINS = 32
STRAIGHT = np.zeros((1, 3))
TURNS = 15.0 * np.vstack([np.eye(3), -np.eye(3)])  # degrees about each axis, for further starts
PROBE = 4.0  # mm and degrees; perturbation from which a solution must be found again
MR_RANGE = 20.0  # ratio of the highest to the lowest intensity that is resolved
CLEARLY = 1.03  # factor in information at which the mirrored image fits better
CLEAR = 0.5  # mm of spread below which a result is certain


@dataclass(frozen=True, eq=False)
class Prepared:
    """A canonical image prepared for registration: compressed intensities by resolution in mm.

    `valid` and `is_head` are masks at the finest level: voxels with a value, and the head.
    """

    levels: Mapping[float, Image]
    valid: npt.NDArray[np.bool_]
    is_head: npt.NDArray[np.bool_]

    @cached_property
    def head(self) -> Points:
        """World coordinates of the head's voxels at the finest level, shape (P, 3)."""
        return self.levels[FINE].grid.world(np.argwhere(self.is_head))


@dataclass(frozen=True, eq=False)
class Registration:
    """The result of a registration, and its reliability.

    `to_moving` (4x4) maps fixed world coordinates to moving ones. `spread` is the distance between results
    from different starts (mm, mean over the head): tenths for two images of one head, more than a millimeter
    for two heads. `information` is the mutual information inside the fixed head as a fraction of the smaller
    entropy; `overlap` the fraction of that head that the moving image covers.
    """

    to_moving: Matrix
    spread: float
    information: float
    overlap: float


# ---- preparation -------------------------------------------------------------------------------------------


def prepare_image(image: Image, window: tuple[float, float] | None = None) -> Prepared:
    """Compress the intensities of a canonical image and downsample it to each level.

    CT is clipped to `window`; MR is log-transformed over the upper `MR_RANGE` of its intensities. Smoothing
    uses valid voxels only, so that the edge of a skull-stripped image does not move.
    """
    data = np.asarray(image.data, np.float32)
    valid = np.isfinite(data) & (data > (window[0] if window else 0))
    (box,) = ndimage.find_objects(valid.view(np.uint8))
    data, valid = data[box], valid[box]
    if window:
        values = np.clip(data, *window) - window[0]
    else:
        high = float(np.percentile(data[valid], 99.5))
        values = np.log(np.clip(np.where(valid, data, 0), high / MR_RANGE, high) * (MR_RANGE / high))
    values = np.where(valid, values, 0)
    affine = image.grid.affine.copy()
    affine[:3, 3] = image.grid.world(np.array([s.start for s in box]))
    grid = Grid(data.shape, affine)
    reduced = {mm: _reduce(values, valid, grid, mm) for mm in (COARSE, FINE)}
    fine, has_value = reduced[FINE]
    is_head = find_head(np.asarray(fine.data, np.float32))
    return Prepared({mm: level for mm, (level, _) in reduced.items()}, has_value, is_head)


def mirror(prepared: Prepared) -> Prepared:
    """Swap left and right under an unchanged header."""
    levels = {mm: Image(image.data[::-1], image.grid) for mm, image in prepared.levels.items()}
    return Prepared(levels, prepared.valid[::-1], prepared.is_head[::-1])


def _reduce(
    values: npt.NDArray[np.floating], valid: npt.NDArray[np.bool_], grid: Grid, mm: float
) -> tuple[Image, npt.NDArray[np.bool_]]:
    """Smooth to `mm` full width at half maximum and resample to an isotropic grid along the same axes."""
    sigma = np.sqrt(np.maximum(mm**2 - grid.spacing**2, 0)) / 2.355 / grid.spacing
    weight = ndimage.gaussian_filter(valid.astype(np.float32), sigma, truncate=3)
    smooth = ndimage.gaussian_filter(values.astype(np.float32), sigma, truncate=3)
    smooth = np.where(weight > 0.5, smooth / np.maximum(weight, 0.5), 0)
    affine = grid.affine.copy()
    affine[:3, :3] *= mm / grid.spacing
    x, y, z = np.floor((np.array(grid.shape) - 1) * grid.spacing / mm).astype(int) + 1
    reduced = Grid((x, y, z), affine)
    return Image(resample(smooth, grid, reduced), reduced), resample(weight, grid, reduced) > 0.5


# ---- registration ------------------------------------------------------------------------------------------


def register(fixed: Prepared, moving: Prepared) -> Registration:
    """Register `moving` regardless of its header; rotated starts are tried only if needed."""
    found = refine(fixed, moving, _find_start(fixed, moving, STRAIGHT))
    if found.spread <= CLEAR:
        return found
    turned = refine(fixed, moving, _find_start(fixed, moving, TURNS))
    return max(found, turned, key=lambda r: r.information * r.overlap)


def refine(fixed: Prepared, moving: Prepared, start: Matrix) -> Registration:
    """Register near `start`, and measure whether perturbed starts lead to the same result."""
    best, _ = _optimize(fixed, moving, start, FINE)
    center, away = fixed.head.mean(0), PROBE / np.sqrt(3) * np.ones(3)
    probes = [best @ rigid_transform(sign * away, sign * away, center) for sign in (1, -1)]
    again = [_optimize(fixed, moving, probe, FINE, seed)[0] for seed, probe in enumerate(probes, 2)]
    return Registration(
        to_moving=best,
        spread=max(mean_distance(best, other, fixed.head) for other in again),
        information=mutual_information(fixed, moving, best),
        overlap=overlap(fixed, moving, best),
    )


def looks_mirrored(fixed: Prepared, moving: Prepared, straight: Registration) -> bool:
    """Whether `moving` fits clearly better with left and right swapped.

    `spread` does not detect this: a mirrored head can be registered consistently.
    """
    flipped = mirror(moving)
    best, _ = _optimize(fixed, flipped, _find_start(fixed, flipped, STRAIGHT), FINE)
    return mutual_information(fixed, flipped, best) > CLEARLY * straight.information


def _find_start(fixed: Prepared, moving: Prepared, turns: Points) -> Matrix:
    """Best coarse result from headers and from head centers, rotated by each of some rotation vectors."""
    center = fixed.head.mean(0)
    shifts = np.zeros(3), moving.head.mean(0) - center
    starts = [rigid_transform(turn, shift, center) for shift in shifts for turn in turns]
    ends = [_optimize(fixed, moving, start, COARSE) for start in starts]
    # Weight information by overlap; otherwise a single matching slice could win.
    return max(ends, key=lambda end: end[1] * overlap(fixed, moving, end[0]))[0]


def _optimize(
    fixed: Prepared, moving: Prepared, start: Matrix, mm: float, seed: int = 1
) -> tuple[Matrix, float]:
    """Optimize from `start` at one resolution; returns the optimum and its mutual information."""
    center = fixed.head.mean(0)
    transform = sitk.Euler3DTransform()
    transform.SetCenter(center.tolist())
    transform.SetMatrix(start[:3, :3].ravel().tolist(), 1e-6)
    transform.SetTranslation((apply(start, center) - center).tolist())
    still, moved = fixed.levels[mm], moving.levels[mm]
    method = sitk.ImageRegistrationMethod()
    method.SetNumberOfWorkUnits(1)  # the order of summation must not vary
    method.SetMetricAsMattesMutualInformation(BINS)
    method.SetMetricSamplingStrategy(method.RANDOM)
    method.SetMetricSamplingPercentage(min(1.0, SAMPLES[mm] / still.data.size), seed)
    method.SetMetricUseFixedImageGradientFilter(False)
    method.SetMetricUseMovingImageGradientFilter(False)
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(*STEPS[mm], MOST_STEPS, 0.6)
    # Scale rotations by the displacement they cause at a typical voxel.
    lever = float(((fixed.head - center) ** 2).sum(1).mean())
    method.SetOptimizerScales([lever] * 3 + [1.0] * 3)
    method.SetInitialTransform(transform, True)
    try:
        method.Execute(to_itk(still.data, still.grid), to_itk(moved.data, moved.grid))
    except RuntimeError:  # no overlap
        return start, 0.0
    R = np.reshape(transform.GetMatrix(), (3, 3))
    return _rotate_about(R, np.array(transform.GetTranslation()), center), -method.GetMetricValue()


# ---- figures -----------------------------------------------------------------------------------------------


def mutual_information(fixed: Prepared, moving: Prepared, to_moving: Matrix) -> float:
    """Mutual information inside the fixed head as a fraction of the smaller entropy, 0 to 1."""
    still, moved = fixed.levels[FINE], moving.levels[FINE]
    points = fixed.head[:: 1 + len(fixed.head) // 40_000]
    a = ndimage.map_coordinates(still.data, still.grid.index(points).T, order=1)
    b = ndimage.map_coordinates(moved.data, moved.grid.index(apply(to_moving, points)).T, order=1)
    p = np.histogram2d(a, b, BINS)[0] / len(points)
    entropies = _entropy(p.sum(1)), _entropy(p.sum(0))
    return (sum(entropies) - _entropy(p)) / min(entropies) if min(entropies) > 0 else 0.0


def overlap(fixed: Prepared, moving: Prepared, to_moving: Matrix) -> float:
    """Fraction of the fixed head that lies inside the moving image."""
    grid = moving.levels[FINE].grid
    index = grid.index(apply(to_moving, fixed.head))
    return float(((index >= 0) & (index <= np.array(grid.shape) - 1)).all(1).mean())


def _entropy(p: npt.NDArray[np.float64]) -> float:
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


# ---- rigid maps --------------------------------------------------------------------------------------------


def rigid_transform(degrees: npt.ArrayLike, shift: npt.ArrayLike, center: npt.ArrayLike) -> Matrix:
    """4x4 matrix that rotates by a rotation vector about `center`, then translates."""
    R = Rotation.from_rotvec(degrees, degrees=True).as_matrix()
    return _rotate_about(R, np.asarray(shift, float), np.asarray(center, float))


def apply(matrix: Matrix, points: Points) -> Points:
    """Apply a 4x4 matrix to points (..., 3)."""
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def mean_distance(a: Matrix, b: Matrix, points: Points) -> float:
    """Mean distance (mm) between points under two transforms."""
    return float(np.linalg.norm(apply(a, points) - apply(b, points), axis=-1).mean())


def rotation_angle(matrix: Matrix) -> float:
    """Rotation angle of a rigid transform in degrees."""
    return float(np.degrees(Rotation.from_matrix(matrix[:3, :3]).magnitude()))


def _rotate_about(R: Matrix, shift: Points, center: Points) -> Matrix:
    out = np.eye(4)
    out[:3, :3] = R
    out[:3, 3] = center - R @ center + shift
    return out
