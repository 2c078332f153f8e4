"""Damaged and hostile DICOM files: a refusal or the same image, never anything else."""

from __future__ import annotations

import numpy as np
import pytest
from fuzzing import GRID, VALUES, WAYS, Study
from pydicom import dcmread
from rt_files import save, write_series

from tumoar.io.images import read_image


def fuzz(folder, numbers):
    study = Study(folder)
    found = [study.damaged(number) for number in numbers]
    assert {how for how, _ in found} == set(WAYS)
    assert {was_read for _, was_read in found} == {True, False}


def test_damaged_files(tmp_path):
    fuzz(tmp_path, range(250))


@pytest.mark.long
def test_ten_thousand_damaged_files(tmp_path, record_property):
    fuzz(tmp_path, range(1000, 11_000))
    record_property("tried", 10_000)


def test_one_slice_with_other_pixels_is_read_as_it_is(tmp_path):
    """What the standard allows is not damage: a slice of zeros is a slice of zeros."""
    paths = write_series(tmp_path, VALUES, GRID)
    data = dcmread(paths[1])
    data.PixelData = bytes(len(data.PixelData))
    save(data, paths[1])
    assert np.count_nonzero((read_image(tmp_path).data == 0).all((0, 1))) == 1
