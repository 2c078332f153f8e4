"""Structure sets read by others: every reader gives masks [column, row, slice] on the slices of a series."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.path import Path as Polygon
from pydicom import Dataset, dcmread

from tumoar.geometry.contours import fill_contours
from tumoar.io.dicom import Series, grid_of
from tumoar.io.rtstruct import read_rtstruct

Masks = dict[str, np.ndarray]


def read_own(path: Path, folder: Path, series: Series, names: Iterable[str]) -> Masks:
    """Our own reader: shares of voxels."""
    grid, _ = grid_of(series)
    outlines = {o.name: o for o in read_rtstruct(path).outlines}
    return {name: fill_contours(outlines[name], grid) for name in names}


def read_plainly(path: Path, folder: Path, series: Series, names: Iterable[str]) -> Masks:
    """By nothing but the standard's tags, as pydicom gives them, and a point-in-polygon test."""
    data = dcmread(path)
    images = {d.SOPInstanceUID: d for d in map(dcmread, folder.glob("*.dcm"))}
    grid, slices = grid_of(series)
    place = {series.headers[s.path].SOPInstanceUID: k for k, s in enumerate(slices)}
    out = {}
    for name in names:
        mask = np.zeros(grid.shape, bool)
        for uid, inside in _plain(data, images, name):
            mask[:, :, place[uid]] ^= inside
        out[name] = mask
    return out


def _plain(data: Dataset, images: dict[str, Dataset], name: str) -> Iterable[tuple[str, np.ndarray]]:
    number = next(r.ROINumber for r in data.StructureSetROISequence if r.ROIName == name)
    item = next(c for c in data.ROIContourSequence if c.ReferencedROINumber == number)
    for contour in item.get("ContourSequence", []):
        image = images[contour.ContourImageSequence[0].ReferencedSOPInstanceUID]
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        assert len(points) == contour.NumberOfContourPoints >= 3
        along_row, along_column = np.array(image.ImageOrientationPatient, float).reshape(2, 3)
        away = points - np.array(image.ImagePositionPatient, float)
        assert np.abs(away @ np.cross(along_row, along_column)).max() < 1e-2
        between_rows, between_columns = image.PixelSpacing
        flat = np.stack([away @ along_row / between_columns, away @ along_column / between_rows], 1)
        pixels = np.stack(np.meshgrid(np.arange(image.Columns), np.arange(image.Rows), indexing="ij"), -1)
        inside = Polygon(flat).contains_points(pixels.reshape(-1, 2)).reshape(pixels.shape[:2])
        yield image.SOPInstanceUID, inside


def read_plastimatch(path: Path, folder: Path, series: Series, names: Iterable[str]) -> Masks:
    """By plastimatch, which knows transverse slices in the standard order."""
    import SimpleITK as sitk  # noqa: N813

    out = path.with_name(f"{path.stem}_plastimatch")
    command = ["plastimatch", "convert", "--input", path, "--referenced-ct", folder]
    command += ["--output-prefix", out, "--prefix-format", "nrrd"]
    subprocess.run(command, capture_output=True, check=True)
    read = {name: sitk.GetArrayFromImage(sitk.ReadImage(str(out / f"{name}.nrrd"))) for name in names}
    return {name: values.transpose(2, 1, 0) > 0 for name, values in read.items()}


def read_rt_utils(path: Path, folder: Path, series: Series, names: Iterable[str]) -> Masks:
    """By rt-utils, which draws every pixel that a contour touches."""
    from rt_utils import RTStructBuilder

    builder = RTStructBuilder.create_from(str(folder), str(path))
    return {name: builder.get_roi_mask_by_name(name).transpose(1, 0, 2) for name in names}
