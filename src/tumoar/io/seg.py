"""Write DICOM segmentations: masks on the voxels of a series, written by highdicom and read back."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydicom import Dataset

from tumoar.geometry.image import Grid
from tumoar.io.dicom import Series, Slice, grid_of
from tumoar.io.dicom_file import open_dicom, pixels_of
from tumoar.io.files import replace_file
from tumoar.io.rois import MANUFACTURER, NOT_REVIEWED, STUDY, UNIDENTIFIED, Review, Roi, uid
from tumoar.version import __version__
from tumoar.vocabulary.errors import IntegrityError, TumoarError

ANATOMY, LESION = "AnatomicalStructure", "MorphologicallyAbnormalStructure"
EMPTY_IF_ABSENT = (*STUDY, "PositionReferenceIndicator")


def write_seg(
    path: str | Path,
    rois: Sequence[Roi],
    series: Series,
    *,
    key: str = "",
    is_checked: bool = True,
    review: Review = NOT_REVIEWED,
) -> None:
    """Write each structure as a segment, atomically; empty structures are skipped.

    Unless `is_checked`, the descriptions state that patient identity could not be checked.
    """
    path = Path(path)
    grid, _ = grid_of(series)
    there = [roi for roi in rois if roi.mask.any()]
    if not there:
        return
    description = review.description + ("" if is_checked else UNIDENTIFIED)
    data = _segmentation(there, series, key, description, review)
    with replace_file(path) as temporary:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data.save_as(temporary)
        _require_same(temporary, there, grid, path.name)


def _segmentation(rois: Sequence[Roi], series: Series, key: str, description: str, review: Review) -> Dataset:
    import highdicom as hd
    from pydicom.sr.codedict import codes

    _, slices = grid_of(series)
    paths = list(dict.fromkeys(s.path for s in slices))
    sources = [_source(series.headers[p]) for p in paths]
    own = "seg", key, series.uid, ",".join(roi.name for roi in rois)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings quote values of the series
        algorithm = hd.AlgorithmIdentificationSequence(
            "tumoar", codes.cid7162.ArtificialIntelligence, __version__
        )
        descriptions = [
            hd.seg.SegmentDescription(
                segment_number=number,
                segment_label=roi.name,
                segmented_property_category=getattr(codes.SCT, LESION if roi.kind != "ORGAN" else ANATOMY),
                segmented_property_type=hd.sr.CodedConcept(
                    roi.code.value if roi.code else "91723000",
                    "SCT",
                    roi.code.meaning if roi.code else "Anatomical Structure",
                ),
                algorithm_type=review.algorithm(roi.name),
                algorithm_identification=algorithm,
                tracking_id=f"{roi.name} {review.label}",
                tracking_uid=uid("track", roi.name, *own),
                display_color=hd.color.CIELabColor.from_rgb(*roi.rgb),
            )
            for number, roi in enumerate(rois, 1)
        ]
        # Frames in the order of the sources: slices of separate files, or frames of a single file.
        order = [k for p in paths for k in _frames(slices, p)]
        values = np.stack([roi.mask.transpose(2, 1, 0)[order] for roi in rois], -1).astype(np.uint8)
        return hd.seg.Segmentation(
            source_images=sources,
            pixel_array=values,
            segmentation_type="BINARY",
            segment_descriptions=descriptions,
            series_instance_uid=uid("series", *own),
            series_number=1,
            sop_instance_uid=uid("instance", *own),
            instance_number=1,
            manufacturer=MANUFACTURER,
            manufacturer_model_name="tumoar",
            software_versions=__version__,
            device_serial_number="0",
            content_label=review.label.replace("-", "_"),
            content_description=description,
            content_creator_name=review.reviewer,
            series_description=description,
        )


def _frames(slices: Sequence[Slice], path: Path) -> list[int]:
    """Positions in the stack of the frames of a file, in file order."""
    own = [(s.frame, k) for k, s in enumerate(slices) if s.path == path]
    return [k for _, k in sorted(own)]


def _source(header: Dataset) -> Dataset:
    """The header with attributes that highdicom requires, though the standard allows them to be empty."""
    whole = Dataset(header)
    whole.file_meta = header.file_meta
    for keyword in EMPTY_IF_ABSENT:
        if keyword not in whole:
            setattr(whole, keyword, "")
    return whole


def _require_same(written: Path, rois: Sequence[Roi], grid: Grid, name: str) -> None:
    """Compare every voxel of every segment, using the frame positions in the file."""
    try:
        data = open_dicom(written)
        frames = pixels_of(data, name)
        shared = data.SharedFunctionalGroupsSequence[0]
        found = np.zeros((len(rois), *grid.shape), bool)
        for frame, groups in zip(
            frames.reshape(-1, *frames.shape[-2:]), data.PerFrameFunctionalGroupsSequence
        ):
            corner = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float) * [-1, -1, 1]
            index = grid.index(corner)
            group = groups if "SegmentIdentificationSequence" in groups else shared
            number = group.SegmentIdentificationSequence[0].ReferencedSegmentNumber
            if np.abs(index - np.rint(index)).max() > 1e-2 or np.abs(index[:2]).max() > 1e-2:
                raise ValueError("a frame lies beside its slice")
            found[number - 1, :, :, round(index[2])] = frame.T > 0
        for roi, mask in zip(rois, found):
            if not np.array_equal(mask, roi.mask):
                raise ValueError(f"{roi.name}: {np.count_nonzero(mask != roi.mask)} voxels differ")
    except (TumoarError, ValueError, AttributeError, IndexError) as error:
        raise IntegrityError(
            "written", "written segments differ from the structures", file=name, found=str(error)
        ) from error
