"""Adding an organ, as docs/adding.md says: label maps that have it, its rows, `tumoar train atlas`.

Everything runs as commands, from training to doses, on heads of half the natural size. Only the training of
the atlas is shorter than usual.
"""

from __future__ import annotations

import csv
import tomllib
from functools import partial
from importlib.resources import as_file, files
from types import SimpleNamespace

import numpy as np
import one_more_organ
import pytest
from pydicom import dcmread
from rt_files import write_rtdose, write_series

import tumoar
from tumoar.cli import main
from tumoar.geometry.image import Grid
from tumoar.io.models import load_model
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.io.seg_read import read_seg
from tumoar.report import read_page
from tumoar.result.folder import read_manifest
from tumoar.result.scores import dice
from tumoar.train import atlas as training
from tumoar.vocabulary.labels import parse_labels

pytestmark = pytest.mark.slow

FRAME = "1.2.77.1"
NAME, COLOR = "Pituitary", "#00a0a0"
SETTINGS = """
[gem]
levels = [{ spacing = 1, smoothing = 0 }]
outer_iterations = 1
em_iterations = 8
[gibbs]
burn_in = 3
samples = 3
"""


def command(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code == 0


def rows(path):
    with open(path, encoding="utf-8") as file:
        return {row[next(iter(row))]: row for row in csv.DictReader(file, delimiter="\t")}


def as_scanned(values, grid):
    """Columns to the patient's left, rows to the back, slices up."""
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    flip[:2, 3] = np.array(values.shape[:2]) - 1
    return values[::-1, ::-1], Grid(values.shape, grid.affine @ flip)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A model trained with the organ, and a patient segmented with it."""
    folder = tmp_path_factory.mktemp("organ")
    (folder / "labels.toml").write_text(one_more_organ.table_text(), encoding="utf-8")
    labels = parse_labels(tomllib.loads(one_more_organ.table_text()))
    heads = [folder / f"head_{n}.nii.gz" for n in (1, 2)]
    for path, shrink in zip(heads, (1.97, 2.03)):
        write_nifti(path, *one_more_organ.label_map(labels, shrink))
    light = training.AtlasSettings(levels=(training.Level((7.0,), 1),), collapses=0)
    with pytest.MonkeyPatch.context() as patch, as_file(files("tumoar") / "data/shape.npz") as shape:
        patch.setattr(training, "AtlasSettings", lambda: light)
        command("train", "atlas", *heads, "--labels", folder / "labels.toml", "-o", folder / "atlas.npz")
        command("train", "combine", folder / "atlas.npz", shape, "-o", folder / "model.npz")

    case, truth = one_more_organ.case(labels)
    T1c, FLAIR = np.exp(case.D)
    values, grid = as_scanned(T1c, case.grid)
    write_series(folder / "T1c", values, grid, frame=FRAME)
    write_nifti(folder / "FLAIR.nii.gz", FLAIR, case.grid)
    write_nifti(folder / "truth.nii.gz", truth, case.grid)
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    given = ("--t1c", folder / "T1c", "--flair", folder / "FLAIR.nii.gz", "--no-register", "--whole-head")
    extra = ("--save-samples", "--margins", "ctv=4,ptv=2", "--rtstruct", "--seg", "--quiet")
    settings = ("--model", folder / "model.npz", "--config", folder / "settings.toml")
    command("segment", *given, *extra, *settings, "-o", folder / "out")
    return SimpleNamespace(folder=folder, out=folder / "out", labels=labels, truth=truth, grid=grid)


def test_the_model_file_has_the_table_and_names_its_landmarks(done):
    atlas = load_model([done.folder / "model.npz"]).atlas
    assert atlas.labels == done.labels
    assert len(atlas.provenance["landmarks"]["pituitary gland"]) == 3


def test_the_organ_is_outlined_where_it_is(done):
    mask = np.asarray(read_nifti(done.out / f"structures/{NAME}.nii.gz").data) > 0
    values, _ = as_scanned(done.truth, done.grid)
    truth = values == done.labels.indices[done.labels.l("pituitary gland")]
    assert dice(mask, truth) > 0.8
    volume = rows(done.out / "volumes.tsv")[NAME]
    assert float(volume["outlined_cm3"]) == pytest.approx(truth.sum() / 1000, rel=0.2)
    assert rows(done.out / "segmentation.tsv")["20"]["color"] == COLOR
    assert rows(done.out / "segmentation.tsv")["20"]["tg263"] == NAME


def test_the_manifest_says_what_labels_mean(done):
    assert parse_labels(read_manifest(done.out)["labels"]) == done.labels


def test_python_reads_the_organ_from_the_result(done):
    result = tumoar.load_result(done.out)
    assert result.table == done.labels
    assert result.mask(NAME).sum() / 1000 == pytest.approx(result.volume(NAME).outlined, abs=1e-3)
    assert result.probability(NAME).max() == 1


def test_contours_and_voxels_for_a_planning_system_have_the_organ(done):
    data = dcmread(done.out / "dicom/RTSTRUCT.dcm")
    number = {roi.ROIName: roi.ROINumber for roi in data.StructureSetROISequence}[NAME]
    contours = {item.ReferencedROINumber: item for item in data.ROIContourSequence}
    assert list(contours[number].ROIDisplayColor) == [0x00, 0xA0, 0xA0]
    assert len(contours[number].ContourSequence) > 5
    assert NAME in read_seg(done.out / "dicom/SEG.dcm").frames


def test_the_organ_is_scored(done, capfd):
    values, _ = as_scanned(done.truth, done.grid)
    write_nifti(done.folder / "drawn.nii.gz", values, done.grid)
    score = partial(command, "evaluate", "--reference", done.folder / "drawn.nii.gz")
    score(done.out)
    whole = capfd.readouterr().out
    assert float(next(line.split()[3] for line in whole.splitlines() if NAME in line)) > 0.8
    score(done.out / "segmentation.nii.gz")  # the label map alone, which lies beside its table
    assert NAME in capfd.readouterr().out
    score(done.out, "--values", f"{NAME}=20")
    assert NAME in capfd.readouterr().out
    command("evaluate", done.out, "--reference", done.out / "dicom/RTSTRUCT.dcm")
    assert NAME in capfd.readouterr().out


def test_the_organ_gets_a_dose_with_its_samples_and_shows_in_the_report(done):
    write_rtdose(done.folder / "RD.dcm", np.full(done.grid.shape, 50.0), done.grid, FRAME)
    (done.folder / "limits.toml").write_text(
        f'[[limit]]\nstructure = "{NAME}"\nmetric = "mean"\nlimit = 45.0\n', encoding="utf-8"
    )
    command("dose", done.out, "--dose", done.folder / "RD.dcm", "--limits", done.folder / "limits.toml")
    row = rows(done.out / "dose.tsv")[NAME]
    assert float(row["mean_Gy"]) == float(row["mean_p95"]) == pytest.approx(50, abs=0.1)
    assert rows(done.out / "limits.tsv")[NAME]["light"] == "red"
    command("report", done.out)
    page = read_page(done.out / "report.html")
    assert {"index": 20, "name": "pituitary gland", "color": COLOR, "shown": True} in page["legend"]
    assert COLOR in [row["color"] for row in page["volumes"] if row["name"] == NAME]
    assert COLOR in [curve["color"] for curve in page["dose"] if curve["name"] == NAME]
