"""DICOM segmentations give back every voxel, by highdicom and by SimpleITK."""

from __future__ import annotations

import shutil
import subprocess

import highdicom as hd
import numpy as np
import pytest
from pydicom import dcmread
from rt_cases import random_frame, random_masks
from rt_files import enhanced, save, write_series

from tumoar.geometry.image import Grid
from tumoar.io import seg
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.rois import Review, Roi
from tumoar.io.seg import write_seg
from tumoar.vocabulary.errors import IntegrityError
from tumoar.vocabulary.labels import Code


def example(folder, seed):
    rng = np.random.default_rng(seed)
    frame = random_frame(rng)
    write_series(
        folder / "ct", rng.integers(0, 2000, frame.grid.shape).astype(float), frame.grid, modality="CT"
    )
    series = only_series(folder / "ct")
    masks = random_masks(rng, grid_of(series)[0].shape)
    return series, [Roi(n, "ORGAN", "#2ca02c", m, Code("119238007", "Brain Stem")) for n, m in masks.items()]


@pytest.mark.parametrize("seed", range(5))
def test_highdicom_reads_the_same(tmp_path, seed):
    series, rois = example(tmp_path, seed)
    write_seg(tmp_path / "SEG.dcm", rois, series)
    read = hd.seg.segread(tmp_path / "SEG.dcm")
    assert read.FrameOfReferenceUID == series.frame
    slices = grid_of(series)[1]
    uids = [series.headers[s.path].SOPInstanceUID for s in slices]
    there = [roi for roi in rois if roi.mask.any()]
    assert [read.get_segment_description(n + 1).segment_label for n in range(len(there))] == [
        roi.name for roi in there
    ]
    pixels = read.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    for n, roi in enumerate(there):
        assert np.array_equal(pixels[..., n].transpose(2, 1, 0) > 0, roi.mask)


def test_enhanced_sources(tmp_path):
    where = Grid((12, 10, 8), np.diag([-1.0, -1.5, 2.0, 1.0]))
    (tmp_path / "mr").mkdir()
    save(enhanced(np.ones(where.shape), where), tmp_path / "mr" / "a.dcm")
    mask = np.zeros(where.shape, bool)
    mask[3:6, 2:5, 1:5] = True
    write_seg(tmp_path / "SEG.dcm", [Roi("GTV", "GTV", "#ff1fc7", mask)], only_series(tmp_path / "mr"))
    assert (tmp_path / "SEG.dcm").is_file()  # it was read back before


def test_an_approved_file_says_so(tmp_path):
    series, rois = example(tmp_path, 3)
    there = [roi for roi in rois if roi.mask.any()]
    review = Review(frozenset([there[0].name]), "ABC", "20260102", "030405")
    write_seg(tmp_path / "SEG.dcm", rois, series, review=review)
    data = dcmread(tmp_path / "SEG.dcm")
    assert (data.ContentLabel, str(data.ContentCreatorName)) == ("APPROVED", "ABC")
    kinds = [row.SegmentAlgorithmType for row in data.SegmentSequence]
    assert kinds == ["SEMIAUTOMATIC"] + ["AUTOMATIC"] * (len(there) - 1)
    assert "approved" in data.SeriesDescription


def test_nothing_gives_no_file(tmp_path):
    series, rois = example(tmp_path, 0)
    write_seg(tmp_path / "SEG.dcm", [roi for roi in rois if not roi.mask.any()], series)
    assert not (tmp_path / "SEG.dcm").exists()


def test_what_reads_back_wrong_is_not_written(tmp_path, monkeypatch):
    series, rois = example(tmp_path, 1)
    original = seg._frames
    monkeypatch.setattr(seg, "_frames", lambda slices, path: [k - 1 for k in original(slices, path)])
    with pytest.raises(IntegrityError):
        write_seg(tmp_path / "SEG.dcm", rois, series)
    assert not (tmp_path / "SEG.dcm").exists()


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="needs dciodvfy (dicom3tools)")
def test_dciodvfy_finds_no_error(tmp_path):
    series, rois = example(tmp_path, 2)
    write_seg(tmp_path / "SEG.dcm", rois, series)
    told = subprocess.run(["dciodvfy", tmp_path / "SEG.dcm"], capture_output=True, text=True)
    lines = (told.stderr + told.stdout).splitlines()
    assert "Segmentation" in lines
    assert not [line for line in lines if line.startswith("Error")]
