"""`tumoar export` for 3D Slicer and ITK-SNAP."""

import shutil

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from small_study import build

from tumoar.cli import main
from tumoar.io.manifest import read_manifest
from tumoar.io.nifti import read_nifti


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("built"), organs=True)[0]


@pytest.fixture
def out(built, tmp_path):
    return shutil.copytree(built, tmp_path / "out")


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["export", *map(str, arguments)])
    return end.value.code, *capfd.readouterr()


def test_labels_of_both_programs_are_part_of_the_result(out, capfd):
    code, told, _ = call(capfd, out, "--slicer", "--itksnap")
    assert code in (0, None)
    names = ["itksnap/segmentation.label.txt", "slicer/segmentation.ctbl", "slicer/structures.seg.nrrd"]
    assert all(name in told for name in names)
    assert set(names) <= set(read_manifest(out)["files"])


def test_every_structure_lies_where_its_mask_lies(out, capfd):
    call(capfd, out, "--slicer")
    image = sitk.ReadImage(str(out / "slicer" / "structures.seg.nrrd"))
    values = sitk.GetArrayFromImage(image)
    manifest = read_manifest(out)
    names = [row["name"] for row in manifest["volumes"]]
    keys = {image.GetMetaData(f"Segment{n}_Name"): n for n in range(len(names))}
    assert set(keys) == set(names)
    for name, n in keys.items():
        mask = read_nifti(out / "structures" / f"{name}.nii.gz")
        layer, value = (int(image.GetMetaData(f"Segment{n}_{key}")) for key in ("Layer", "LabelValue"))
        there = np.argwhere(values[..., layer] == value)
        assert len(there) == np.count_nonzero(mask.data)
        if len(there):
            found = image.TransformContinuousIndexToPhysicalPoint(there.mean(0)[::-1].tolist())
            expected = mask.grid.world(np.argwhere(mask.data).mean(0))
            assert found == pytest.approx(expected * [-1, -1, 1], abs=1e-4)


def test_labels_name_every_value_of_the_label_map(out, capfd):
    call(capfd, out, "--slicer", "--itksnap")
    there = set(np.unique(read_nifti(out / "segmentation.nii.gz").data).tolist())
    for name in ("itksnap/segmentation.label.txt", "slicer/segmentation.ctbl"):
        lines = [text for text in (out / name).read_text().splitlines() if not text.startswith("#")]
        assert there <= {int(text.split()[0]) for text in lines}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "nothing to write"),
        (("--rtstruct",), "no series to draw on"),
        (("--slicer", "--reference", "x"), "--reference without --rtstruct or --seg"),
    ],
)
def test_flags_that_do_not_fit_are_refused(out, capfd, flags, sentence):
    code, _, err = call(capfd, out, *flags)
    assert code == 2
    assert f"E2-export {sentence}" in err


def test_a_folder_without_a_result_is_refused(tmp_path, capfd):
    code, _, err = call(capfd, tmp_path, "--itksnap")
    assert code == 3
    assert "no finished result" in err
    assert list(tmp_path.iterdir()) == []


def test_exporting_again_gives_the_same_bytes(out, capfd):
    call(capfd, out, "--slicer")
    before = read_manifest(out)["files"]["slicer/structures.seg.nrrd"]
    assert call(capfd, out, "--slicer")[0] in (0, None)
    assert read_manifest(out)["files"]["slicer/structures.seg.nrrd"] == before
