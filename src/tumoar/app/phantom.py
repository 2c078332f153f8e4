"""Digital phantom of `tumoar commission`: bodies known by formula, through files, contours and doses.

Every body is written, read back and compared with its formula in world coordinates, so that a swapped axis, a
mirrored side or a wrong spacing cannot cancel out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tumoar.app.acceptance import Finding
from tumoar.geometry.contours import cut_outline, fill_contours
from tumoar.geometry.image import Grid, Image
from tumoar.geometry.pieces import Pieces, cut_mask
from tumoar.io.dicom import Series, grid_of, only_series, read_series
from tumoar.io.dicom_write import frame_of, write_ct, write_dose
from tumoar.io.dose import read_dose
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.io.rois import Roi
from tumoar.io.rtstruct import read_rtstruct
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.io.seg import write_seg
from tumoar.io.seg_read import mask_on, read_seg
from tumoar.radiotherapy.dvh import Dvh, dvh
from tumoar.simulate.bodies import CENTER_GY, Placed, Shape, box, linear_dose, sphere, tube
from tumoar.simulate.orders import ORDERS, reorder

FILES, CONTOURS, DOSES = "Files and sides", "Contours", "Dose-volume histograms"
HU = 40  # Hounsfield units per label
PERCENTS = (2.0, 50.0, 95.0)
FIELD = (126.0, 138.0, 132.0)  # mm

Mask = npt.NDArray[np.bool_]
Turn = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Body:
    """A body of the phantom: its shape for a dose along each axis, and its place."""

    name: str
    shape: Callable[[int], Shape]
    center: tuple[float, float, float]
    is_turned: bool = False

    def placed(self, axis: int = 0) -> Placed:
        """The body in the world."""
        return Placed(self.name, self.shape(axis), self.center, TILT if self.is_turned else np.eye(3))


def turn(degrees: float, axis: int) -> Turn:
    """Rotation about an axis."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    a, b = (axis + 1) % 3, (axis + 2) % 3
    R = np.eye(3)
    R[a, a], R[b, b], R[a, b], R[b, a] = c, c, -s, s
    return R


TILT = turn(52, 0) @ turn(33, 1)
"""Axes of tubes and box: oblique to every grid, so that errors of single voxels average out."""
OBLIQUE = turn(14, 2) @ turn(9, 0)
BODIES = (
    Body("Eye_L", lambda axis: sphere(7.0, axis), (-33.3, 45.2, 4.1)),
    Body("Eye_R", lambda axis: sphere(5.0, axis), (31.4, 43.7, -3.2)),
    Body("OpticNrv_L", lambda axis: tube(1.2, axis), (-24.6, 8.3, -8.2), is_turned=True),
    Body("OpticNrv_R", lambda axis: tube(1.0, axis), (22.7, 10.1, 6.4), is_turned=True),
    Body("Brainstem", lambda axis: box((24.0, 20.0, 36.0), axis), (2.2, -34.4, -28.3), is_turned=True),
    Body("GTV", lambda axis: sphere(24.0, axis), (-30.1, -22.6, 36.2)),
)
"""Left and right differ in size, so that exchanging them cannot go unnoticed."""


def make_grid(spacing: tuple[float, float, float], R: Turn | None = None) -> Grid:
    """A grid around the phantom in RAS, or turned by R."""
    affine = np.eye(4)
    affine[:3, :3] = (np.eye(3) if R is None else R) * spacing
    shape = np.ceil(np.array(FIELD) / spacing).astype(int)
    affine[:3, 3] = -affine[:3, :3] @ ((shape - 1) / 2) + (0.13, -0.21, 0.37)
    return Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine)


def label_map(grid: Grid) -> npt.NDArray[np.uint8]:
    """Value n + 1 in the n-th body, voxels by their center."""
    labels = np.zeros(grid.shape, np.uint8)
    for value, body in enumerate(BODIES, 1):
        labels[body.placed().mask(grid)] = value
    return labels


# ---- files -------------------------------------------------------------------------------------------------


def check_nifti(
    folder: Path, orders: Sequence[tuple[Sequence[int], Sequence[bool]]] = ORDERS
) -> Iterator[Finding]:
    """NIfTI label maps in every storage order, straight and oblique, with unequal spacing."""
    where = f"NIfTI, {len(orders)} storage orders, straight and oblique"
    for base in (make_grid((1.2, 1.0, 3.0)), make_grid((0.9, 1.3, 2.0), OBLIQUE)):
        for axes, flips in orders:
            grid = reorder(base, axes, flips)
            write_nifti(folder / "labels.nii.gz", label_map(grid), grid)
            yield from compare_labels(read_nifti(folder / "labels.nii.gz"), where)


PLANES = [order for order in ORDERS if order[1] in ((False, False, False), (True, True, False))]
"""Acquisition planes and directions: axial, sagittal and coronal, rows and columns exchanged, either way."""


def check_dicom(folder: Path) -> Iterator[Finding]:
    """CT series whose slices run along each axis."""
    where = f"DICOM CT, {len(PLANES)} planes and directions"
    for number, (axes, flips) in enumerate(PLANES):
        base = make_grid((1.5, 1.2, 2.0), OBLIQUE if number % 2 else None)
        series = write_phantom(folder / f"ct{number}", reorder(base, axes, flips), f"plane {number}")
        image = read_series(series)
        values = np.asarray(image.data)
        yield Finding(
            FILES, "all", "values", where, float(np.count_nonzero(values % HU)), "exact", unit="voxels"
        )
        yield from compare_labels(replace(image, data=(values // HU).astype(np.uint8)), where)


def write_phantom(folder: Path, grid: Grid, key: str) -> Series:
    """Write the phantom as a CT series."""
    write_ct(folder, Image(label_map(grid).astype(np.int32) * HU, grid), key)
    return only_series(folder)


def compare_labels(image: Image, where: str) -> Iterator[Finding]:
    """Compare a label map that was read with the formulas, on its own grid and in the world."""
    for value, body in enumerate(BODIES, 1):
        found = np.asarray(image.data) == value
        truth = body.placed()
        differing = float(np.count_nonzero(found != truth.mask(image.grid)))
        yield Finding(FILES, body.name, "voxels unlike formula", where, differing, "voxels", unit="voxels")
        cm3 = float(found.sum()) * image.grid.voxel_volume / 1000
        center = image.grid.world(np.argwhere(found).mean(0))
        yield from compare_body(FILES, body, where, cm3, center)


def compare_body(
    part: str, body: Body, where: str, cm3: float, center: npt.NDArray[np.float64]
) -> Iterator[Finding]:
    """Volume, center and side of a body against its formula."""
    true = body.shape(0).cm3
    off = 100 * abs(cm3 - true) / true
    yield Finding(part, body.name, "volume", where, off, "volume", cm3, true, "cm³")
    yield Finding(part, body.name, "center", where, float(np.linalg.norm(center - body.center)), "center")
    is_wrong = np.sign(center).astype(int).tolist() != np.sign(body.center).astype(int).tolist()
    yield Finding(part, body.name, "left/right, front/back, up/down", where, float(is_wrong), "side")


# ---- contours and segments ---------------------------------------------------------------------------------


SERIES: tuple[tuple[tuple[float, float, float], tuple[int, int, int], Turn | None], ...] = (
    ((1.0, 1.0, 2.0), (0, 1, 2), None),
    ((1.2, 1.5, 1.0), (0, 2, 1), None),
    ((1.0, 1.3, 2.0), (1, 0, 2), OBLIQUE),
)
"""Spacing, order of the axes, and rotation of series: axial, coronal, oblique."""
ON_SERIES = "axial, coronal and oblique series"


def check_contours(folder: Path) -> Iterator[Finding]:
    """RTSTRUCT and DICOM-SEG, written on series in several planes and read back."""
    plain = (False, False, False)
    for number, (spacing, axes, R) in enumerate(SERIES):
        key = f"contours {number}"
        series = write_phantom(folder / f"rt{number}", reorder(make_grid(spacing, R), axes, plain), key)
        yield from check_series(folder / f"rt{number}", series, key)


def rois_of(grid: Grid) -> list[Roi]:
    """The bodies as structures on a grid."""
    return [
        Roi(b.name, "GTV" if b.name == "GTV" else "ORGAN", "#ff8000", b.placed().mask(grid)) for b in BODIES
    ]


def check_series(folder: Path, series: Series, key: str) -> Iterator[Finding]:
    """Contours, smoothed contours and segments on one series."""
    grid, _ = grid_of(series)
    rois = rois_of(grid)
    for smooth in (False, True):
        where = f"RTSTRUCT{', smoothed' if smooth else ''}, {ON_SERIES}"
        write_rtstruct(folder / "rs.dcm", rois, series, key=key, smooth=smooth)
        read = read_rtstruct(folder / "rs.dcm")
        wrong = float(read.frame != frame_of(key))
        yield Finding(CONTOURS, "all", "frame of reference", where, wrong, "exact")
        outlines = {outline.name: outline for outline in read.outlines}
        for body, roi in zip(BODIES, rois):
            share = fill_contours(outlines[body.name], grid)
            there = np.argwhere(share)
            center = grid.world(np.average(there, axis=0, weights=share[tuple(there.T)]))
            cm3 = float(share.sum()) * grid.voxel_volume / 1000
            yield from compare_body(CONTOURS, body, where, cm3, center)
            count = float(roi.mask.sum())
            off = 100 * max(abs(float(share.sum()) - count) - 3, 0.0) / count
            yield Finding(
                CONTOURS, body.name, "contour against voxels", where, off, "contour volume",
                float(share.sum()), count, "voxels",
            )  # fmt: skip
    where = f"DICOM-SEG, {ON_SERIES}"
    write_seg(folder / "seg.dcm", rois, series, key=key)
    segments = read_seg(folder / "seg.dcm")
    for roi in rois:
        found = mask_on(segments.frames[roi.name], grid, roi.name)
        differing = float(np.count_nonzero(found != roi.mask))
        yield Finding(CONTOURS, roi.name, "voxels unlike formula", where, differing, "exact", unit="voxels")


# ---- doses -------------------------------------------------------------------------------------------------


def check_doses(folder: Path) -> Iterator[Finding]:
    """D2, D50, D95 and mean dose of bodies in doses that rise by 1 Gy per mm along each axis of a body."""
    key = "doses"
    grid = make_grid((1.0, 1.0, 2.0))
    series = write_phantom(folder / "ct-dose", grid, key)
    write_rtstruct(folder / "rs-dose.dcm", rois_of(grid_of(series)[0]), series, key=key)
    outlines = {outline.name: outline for outline in read_rtstruct(folder / "rs-dose.dcm").outlines}
    for body in BODIES:
        mask = Image(body.placed().mask(grid).astype(float), grid)
        structures = {"voxels": cut_mask(mask), "contours": cut_outline(outlines[body.name])}
        for axis in range(3):
            for dose in _doses(folder, body, axis, key):
                for kind, pieces in structures.items():
                    where = f"from {kind}, RTDOSE and NIfTI, rising along each axis"
                    yield from _compare_dose(body, axis, where, pieces, dose)


def _doses(folder: Path, body: Body, axis: int, key: str) -> Iterator[Image]:
    """The dose around a body, read from RTDOSE and NIfTI."""
    plain = linear_dose(axis)
    affine, R = plain.grid.affine.copy(), body.placed().turn
    affine[:3] = R @ affine[:3]
    affine[:3, 3] += body.center
    dose = Image(plain.data, Grid(plain.grid.shape, affine))
    write_dose(folder / "rd.dcm", dose, key)
    yield read_dose(folder / "rd.dcm")
    write_nifti(folder / "rd.nii.gz", np.asarray(dose.data, np.float32), dose.grid)
    yield read_dose(folder / "rd.nii.gz")


def _compare_dose(body: Body, axis: int, where: str, pieces: Pieces, dose: Image) -> Iterator[Finding]:
    curve: Dvh = dvh(pieces, dose)
    shape = body.shape(axis)
    figures = {f"D{p:g}": (curve.D(p), shape.D(p)) for p in PERCENTS} | {"mean": (curve.mean, CENTER_GY)}
    for name, (found, true) in figures.items():
        off = 100 * abs(found - true) / true
        yield Finding(DOSES, body.name, name, where, off, "dose", found, true, "Gy")
    yield Finding(DOSES, body.name, "outside the dose", where, curve.outside, "exact")
