"""Write structure sets: contours on the slices of a series, read back and compared before publishing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import Dataset, FileMetaDataset
from pydicom.dataelem import RawDataElement
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian

from tumoar.geometry.contours import fill_contours
from tumoar.geometry.image import Grid
from tumoar.io.dicom import Series, Slice, grid_of
from tumoar.io.files import replace_file
from tumoar.io.rois import (
    MANUFACTURER,
    NOT_REVIEWED,
    UNIDENTIFIED,
    Review,
    Roi,
    code_item,
    now,
    of_study,
    uid,
)
from tumoar.io.rtstruct import RTSTRUCT, VOXEL_EDGES, read_rtstruct
from tumoar.numerics.tracing import Region, join_holes, smooth_loop, trace
from tumoar.version import __version__
from tumoar.vocabulary.errors import IntegrityError, TumoarError

CONTOUR_DATA = Tag("ContourData")
STUDY_COMPONENT = "1.2.840.10008.3.1.2.3.1"
VOLUME_SHARE, VOLUME_VOXELS, CENTER = 0.01, 3, 0.2  # tolerances of the comparison; mm
RIM = 2  # voxels

Points = npt.NDArray[np.float64]


def write_rtstruct(
    path: str | Path,
    rois: Sequence[Roi],
    series: Series,
    *,
    smooth: bool = False,
    key: str = "",
    is_checked: bool = True,
    review: Review = NOT_REVIEWED,
) -> None:
    """Write structures as contours on the slices of a series, atomically.

    Contours follow voxel edges; `smooth` rounds them and keeps their areas. A hole is joined to the contour
    around it by a seam. Every structure is read back and filled again: volume and position must agree. The
    file's UIDs are derived from `key` and the series. Unless `is_checked`, the descriptions state that
    patient identity could not be checked.
    """
    path = Path(path)
    grid, slices = grid_of(series)
    for roi in rois:
        if roi.mask.shape != grid.shape:
            raise ValueError(f"mask of {roi.name} must have the series' shape {grid.shape}")
    data = _structure_set(rois, series, grid, slices, smooth, key, review)
    if not is_checked:
        data.SeriesDescription = data.StructureSetName = review.description + UNIDENTIFIED
        data.StructureSetDescription += (
            " Patient identity could not be checked: these images may not show the patient who was segmented."
        )
    with replace_file(path) as temporary:
        data.save_as(temporary, enforce_file_format=True)
        _require_same(temporary, rois, grid, path.name)


def contours_of(
    mask: npt.NDArray[np.bool_], grid: Grid, smooth: bool = False
) -> Iterator[tuple[int, Points]]:
    """Slice number (last axis) and polygon (n, 3) in world mm of every part on every slice."""
    for k in np.flatnonzero(mask.any((0, 1))).tolist():
        for region in trace(mask[:, :, k]):
            loops = (
                Region(smooth_loop(region.outer), tuple(map(smooth_loop, region.holes))) if smooth else region
            )
            for polygon in join_holes(loops):
                yield k, grid.world(np.column_stack([polygon, np.full(len(polygon), k)]))


# ---- the parts of the file ---------------------------------------------------------------------------------


def _structure_set(
    rois: Sequence[Roi],
    series: Series,
    grid: Grid,
    slices: Sequence[Slice],
    smooth: bool,
    key: str,
    review: Review,
) -> Dataset:
    header = series.headers[slices[0].path]
    frame = series.frame or uid("frame", str(header.SeriesInstanceUID))
    own = "rtstruct", key, str(header.SeriesInstanceUID), str(smooth), ",".join(r.name for r in rois)
    date, time = now()
    data = _dataset(
        SOPClassUID=RTSTRUCT,
        SOPInstanceUID=uid("instance", *own),
        SeriesInstanceUID=uid("series", *own),
        Modality="RTSTRUCT",
        SeriesNumber=None,
        SeriesDescription=review.description,
        OperatorsName="",
        Manufacturer=MANUFACTURER,
        ManufacturerModelName="tumoar",
        SoftwareVersions=__version__,
        InstanceCreationDate=date,
        InstanceCreationTime=time,
        StructureSetLabel=review.label,
        StructureSetName=review.description,
        StructureSetDescription=_describe(review),
        StructureSetDate=date,
        StructureSetTime=time,
        ApprovalStatus="APPROVED" if review.reviewer else "UNAPPROVED",
        SpecificCharacterSet=header.get("SpecificCharacterSet") or "ISO_IR 192",
        FrameOfReferenceUID=frame,
        PositionReferenceIndicator="",
        **of_study(header),
    )
    if review.reviewer:
        data.ReviewDate, data.ReviewTime, data.ReviewerName = review.date, review.time, review.reviewer
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    images = [_reference(series, s) for s in slices]
    referenced = _dataset(SeriesInstanceUID=header.SeriesInstanceUID, ContourImageSequence=images)
    study = _dataset(
        ReferencedSOPClassUID=STUDY_COMPONENT,
        ReferencedSOPInstanceUID=header.StudyInstanceUID,
        RTReferencedSeriesSequence=[referenced],
    )
    data.ReferencedFrameOfReferenceSequence = [
        _dataset(FrameOfReferenceUID=frame, RTReferencedStudySequence=[study])
    ]
    kind = "smoothed voxel edges" if smooth else VOXEL_EDGES
    data.StructureSetROISequence = [
        _dataset(
            ROINumber=n,
            ReferencedFrameOfReferenceUID=frame,
            ROIName=roi.name,
            ROIDescription="; ".join(
                filter(None, (roi.made_of, roi.interval, review.describe(roi.name), f"contours along {kind}"))
            ),
            ROIGenerationAlgorithm=review.algorithm(roi.name),
        )
        for n, roi in enumerate(rois, 1)
    ]
    data.ROIContourSequence = [_contours(n, roi, grid, images, smooth) for n, roi in enumerate(rois, 1)]
    data.RTROIObservationsSequence = [_observation(n, roi, review) for n, roi in enumerate(rois, 1)]
    return data


def _contours(number: int, roi: Roi, grid: Grid, images: Sequence[Dataset], smooth: bool) -> Dataset:
    item = _dataset(ReferencedROINumber=number, ROIDisplayColor=roi.rgb)
    contours = []
    for n, (k, polygon) in enumerate(contours_of(roi.mask, grid, smooth), 1):
        contour = _dataset(
            ContourImageSequence=[images[k]],
            ContourGeometricType="CLOSED_PLANAR",
            NumberOfContourPoints=len(polygon),
            ContourNumber=n,
        )
        contour[CONTOUR_DATA] = _decimals((polygon * [-1.0, -1.0, 1.0]).ravel())
        contours.append(contour)
    if contours:
        item.ContourSequence = contours
    return item


def _decimals(values: Points) -> RawDataElement:
    """Numbers as raw bytes: value by value through pydicom, a brain would take a minute."""
    text = "\\".join(f"{v:.4f}" for v in values.tolist()).encode()
    text += b" " * (len(text) % 2)
    return RawDataElement(CONTOUR_DATA, "DS", len(text), text, 0, False, True)


def _describe(review: Review) -> str:
    if review.reviewer:
        return "Outlines for research; approved by the reviewer named here."
    done = "corrected, not approved" if review.corrected else "not reviewed"
    return f"Automatic outlines for research; {done}."


def _observation(number: int, roi: Roi, review: Review) -> Dataset:
    item = _dataset(
        ObservationNumber=number,
        ReferencedROINumber=number,
        ROIObservationLabel=review.label,
        RTROIInterpretedType=roi.kind,
        ROIInterpreter=review.reviewer,
    )
    if roi.code is not None:
        item.RTROIIdentificationCodeSequence = [code_item(roi.code)]
    return item


def _reference(series: Series, of: Slice) -> Dataset:
    header = series.headers[of.path]
    item = _dataset(ReferencedSOPClassUID=header.SOPClassUID, ReferencedSOPInstanceUID=header.SOPInstanceUID)
    if "PerFrameFunctionalGroupsSequence" in header:
        item.ReferencedFrameNumber = of.frame + 1
    return item


def _dataset(**values: object) -> Dataset:
    data = Dataset()
    for keyword, value in values.items():
        setattr(data, keyword, value)
    return data


# ---- reading back ------------------------------------------------------------------------------------------


def _require_same(written: Path, rois: Sequence[Roi], grid: Grid, name: str) -> None:
    """Fill the written contours and compare every structure with its mask."""
    try:
        found = {o.name: o for o in read_rtstruct(written, grid.spacing[2]).outlines}
        wider = _wider(grid)
        for roi in rois:
            if roi.mask.any():
                _compare(fill_contours(found[roi.name], wider), wider, roi, grid)
            elif roi.name in found:
                raise ValueError("contours of an empty structure")
    except (TumoarError, KeyError, ValueError) as error:
        raise IntegrityError(
            "written",
            "written contours differ from the structures",
            file=name,
            found=str(error),
            do="report this bug",
        ) from error


def _wider(grid: Grid) -> Grid:
    """The grid with a rim around every slice: smoothed contours may reach beyond it."""
    affine = grid.affine.copy()
    affine[:3, 3] = grid.world([-RIM, -RIM, 0])
    return Grid((grid.shape[0] + 2 * RIM, grid.shape[1] + 2 * RIM, grid.shape[2]), affine, grid.frame)


def _compare(share: Points, wider: Grid, roi: Roi, grid: Grid) -> None:
    volume, expected = share.sum(), int(roi.mask.sum())
    if abs(volume - expected) > max(VOLUME_SHARE * expected, VOLUME_VOXELS):
        raise ValueError(f"{roi.name}: {volume:.1f} voxels of {expected}")
    away = np.linalg.norm(wider.world(_middle(share)) - grid.world(_middle(roi.mask)))
    if away > CENTER:
        raise ValueError(f"{roi.name}: {away:.2f} mm away")


def _middle(share: npt.NDArray[np.generic]) -> Points:
    where = np.argwhere(share)
    return np.average(where, axis=0, weights=np.asarray(share[tuple(where.T)], float))
