"""A simulated patient from DICOM to doses: CT and three MR series, each in a frame of its own."""

from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import pytest
from rt_files import PLANTED, planted_in, write_rtdose, write_series

from tumoar.geometry.image import Grid
from tumoar.geometry.resample import resample
from tumoar.io.nifti import read_nifti
from tumoar.result.folder import read_manifest
from tumoar.result.scores import dice

CONTRASTS = ("CT", "T1c", "FLAIR", "T2")


def tumoar(*arguments, log):
    command = [sys.executable, "-m", "tumoar", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    log.append(ended.stdout + ended.stderr)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def moved(grid: Grid, number: int) -> Grid:
    """Another position on the table, some millimeters and degrees away."""
    angle = np.radians(1.5 * number)
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turn[:3, 3] = [2.0 * number, -3.0 * number, 1.0 * number]
    return Grid(grid.shape, turn @ grid.affine)


def to_dicom(source, folder, name, number, study):
    image = read_nifti(source)
    # Stored as scanners do: columns to the patient's left, rows to the back, slices up.
    data, affine = np.asarray(image.data, float), image.grid.affine
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    flip[:2, 3] = np.array(data.shape[:2]) - 1
    grid = moved(Grid(data.shape, affine @ flip), number)
    values = data[::-1, ::-1]
    if name != "CT":
        values = np.maximum(values * (4000 / values.max()), 0)
    modality = "CT" if name == "CT" else "MR"
    write_series(
        folder, np.maximum(values, -1024), grid, modality=modality, study=study, frame=f"1.2.77.{number}"
    )
    return grid


@pytest.mark.long
def test_from_series_to_doses(tmp_path):
    log: list[str] = []
    contrasts = [part for name in CONTRASTS for part in ("--contrast", name)]
    tumoar("simulate", "-o", tmp_path / "sim", "--slices", 2, "--seed", 5, *contrasts, log=log)
    grids = {
        name: to_dicom(tmp_path / "sim" / f"{name}.nii.gz", tmp_path / "dicom" / name, name, number, "1.2.5")
        for number, name in enumerate(CONTRASTS)
    }
    listed = tumoar("inspect", tmp_path / "dicom", log=log)
    assert sum("series of" in line for line in listed.splitlines()) == 4
    given = [part for name in CONTRASTS for part in (f"--{name.lower()}", tmp_path / "dicom" / name)]
    settings = ["--fast", "--save-samples", "--samples", 4, "--burn-in", 30, "--margins", "ctv=20,ptv=3"]
    out = tmp_path / "out"
    tumoar("segment", *given, "-o", out, *settings, "--rtstruct", "--seg", "--threads", 1, log=log)
    manifest = read_manifest(out)
    assert {"dicom/RTSTRUCT.dcm", "dicom/SEG.dcm", "structures/CTV.nii.gz"} <= set(manifest["files"])
    assert sum(note["id"] == "B33" for note in manifest["notes"]) <= 3

    truth = read_nifti(tmp_path / "sim" / "truth_tumor.nii.gz")
    found = read_nifti(out / "structures" / "GTV.nii.gz")
    core = np.asarray(found.data) > 0
    whole = core | (np.asarray(read_nifti(out / "structures" / "Edema.nii.gz").data) > 0)
    # Core fills within some thirty sweeps; what the way through DICOM could spoil is its place.
    for mask, label, bound in ((core, 2, 0.5), (whole, 1, 0.8)):
        there = resample(np.asarray(truth.data >= label, np.float32), truth.grid, found.grid) > 0.5
        assert dice(mask, there) > bound

    center = found.grid.world(np.argwhere(found.data).mean(0))
    dose_grid = Grid((80, 90, 70), np.diag([-2.5, -2.5, 2.5, 1.0]))
    affine = dose_grid.affine.copy()
    affine[:3, 3] = center - affine[:3, :3] @ (np.array(dose_grid.shape) / 2)
    dose_grid = Grid(dose_grid.shape, affine)
    points = dose_grid.world(np.stack(np.indices(dose_grid.shape), -1))
    gray = 60 * np.exp(-((np.linalg.norm(points - center, axis=-1) / 60) ** 4))
    write_rtdose(tmp_path / "RD.dcm", gray, dose_grid, "1.2.77.0")
    tumoar("dose", out, "--dose", tmp_path / "RD.dcm", log=log)
    with open(out / "dose.tsv", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert float(rows["GTV"]["D95_Gy"]) > 40
    assert float(rows["GTV"]["mean_p05"]) <= float(rows["GTV"]["mean_p95"])
    drawn = tumoar("dose", out / "dicom" / "RTSTRUCT.dcm", "--dose", tmp_path / "RD.dcm", log=log)
    for line in drawn.splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "structures" and float(words[3]) > 0.05:
            assert float(words[5]) == pytest.approx(float(rows[words[0]]["mean_Gy"]), abs=0.1), words[0]

    assert grids["CT"].shape == tuple(manifest["inputs"][0]["shape"])
    assert not any(planted in text for planted in PLANTED for text in log)
    for path in (p for p in out.rglob("*") if p.is_file()):
        assert bool(planted_in(path)) == (path.suffix == ".dcm"), path.name
    assert set(manifest["patient"]) == {"v", "id", "name"}
