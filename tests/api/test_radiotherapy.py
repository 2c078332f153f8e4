"""Doses and contours from Python."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import small_head
from rt_files import write_rtdose, write_series
from small_run import run

from tumoar.api import Segmentation
from tumoar.geometry.contours import fill_contours
from tumoar.geometry.image import Grid, Image
from tumoar.io.dicom import grid_of, only_series
from tumoar.io.dose import read_dose
from tumoar.io.rtstruct import read_rtstruct
from tumoar.vocabulary.errors import ChannelError, GeometryError

N = small_head.SIZE
FLIP = np.array([[-1.0, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A result whose T1c is a series, and a dose that rises by 1 Gy per mm from left to right."""
    folder = tmp_path_factory.mktemp("api")
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(folder / "t1c", values, Grid((N, N, N), FLIP), frame="1.2.1")
    write_series(folder / "other", values[:, :, ::2], Grid((N, N, N // 2), FLIP @ np.diag([1, 1, 2.0, 1])))
    grid = Grid((20, 20, 20), np.diag([3.0, 3.0, 3.0, 1.0]))
    gray = np.broadcast_to(10 + 3.0 * np.arange(20)[:, None, None], grid.shape)
    for name, frame in (("RD.dcm", "1.2.1"), ("elsewhere.dcm", "1.2.9")):
        write_rtdose(folder / name, gray, grid, frame)
    found = run(keeps_samples=True)
    t1c, flair = found.case.inputs
    given = replace(t1c, grid=grid_of(only_series(folder / "t1c"))[0], orientation="LPS")
    framed = replace(found.case.grid, frame="1.2.1")
    found = replace(found, case=replace(found.case, grid=framed, inputs=(given, flair)))
    return folder, Segmentation(**{f.name: getattr(found, f.name) for f in fields(found)})


def test_dose_with_its_band(patient):
    folder, result = patient
    found = result.dvh("GTV", folder / "RD.dcm")
    assert found.dvh.mean == pytest.approx(10 + 31, abs=0.7)  # where the tumor is
    assert found.dvh.volume == pytest.approx(result.mask("GTV").sum() / 1000)
    assert len(found.samples) == result.tally.samples
    band = found.band(0.90)
    assert (band.low <= band.median).all()
    assert (band.median <= band.high).all()
    with pytest.raises(GeometryError, match="different frames of reference"):
        result.dvh("GTV", folder / "elsewhere.dcm")


def test_doses_are_checked_from_python_too(patient):
    folder, result = patient
    dose = read_dose(folder / "RD.dcm")
    path = write_rtdose(folder / "F.dcm", dose.data / 30, dose.grid, "1.2.1", DoseSummationType="FRACTION")
    with pytest.raises(ChannelError, match="not known to cover the whole course"):
        result.dvh("GTV", path)
    found = result.dvh("GTV", path, fractions=30)
    assert found.dvh.mean == pytest.approx(result.dvh("GTV", dose).dvh.mean, rel=1e-3)
    assert found.notes == ("the dose is for one fraction, multiplied by 30",)
    for value in (np.nan, -1.0, np.inf):
        holed = np.array(dose.data)
        holed[10, 10, 10] = value
        with pytest.raises(ChannelError, match="not a dose"):
            result.dvh("GTV", Image(holed, dose.grid))


def test_contours_on_a_series_that_was_segmented(patient):
    folder, result = patient
    result.to_rtstruct(folder / "t1c", folder / "RS.dcm")
    grid, _ = grid_of(only_series(folder / "t1c"))
    outlines = {o.name: o for o in read_rtstruct(folder / "RS.dcm").outlines}
    assert {"GTV", "Edema", "Brain"} <= set(outlines)
    assert np.array_equal(fill_contours(outlines["GTV"], grid) > 0.5, result.mask("GTV")[::-1, ::-1])
    with pytest.raises(GeometryError, match="was not segmented"):
        result.to_rtstruct(folder / "other", folder / "RS2.dcm")
