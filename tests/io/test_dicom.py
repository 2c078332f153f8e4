"""Series of slices become images where the standard says they lie, or are refused."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from bad_dicom import BAD, assign, edited
from pydicom import dcmread
from pydicom.uid import JPEG2000Lossless
from rt_files import MR, PLANTED, dataset, enhanced, save, write_series

from tumoar.geometry.image import Grid
from tumoar.io import dicom_folder
from tumoar.io.dicom import find_series, only_series, read_series
from tumoar.io.identity import is_same_person
from tumoar.io.images import read_image, read_scans
from tumoar.vocabulary.errors import ChannelError, GeometryError, TumoarError, UnreadableFileError

SHAPE = (12, 10, 8)
VALUES = np.random.default_rng(0).integers(0, 3000, SHAPE).astype(float)


def grid(rotation=None, spacing=(1.5, 2.0, 3.0)):
    affine = np.eye(4)
    affine[:3, :3] = (np.diag([-1.0, -1.0, 1.0]) if rotation is None else rotation) * spacing
    affine[:3, 3] = [-31.5, 17.25, 40.125]
    return Grid(SHAPE, affine)


def planes():
    """Twelve ways that a patient lies and slices are cut, and four oblique ones."""
    for axes in list(permutations(range(3)))[:4]:
        for sign in ([-1, -1, 1], [1, 1, 1], [1, -1, -1]):
            rotation = np.eye(3)[:, list(axes)] * sign
            if np.linalg.det(rotation) < 0:
                rotation = rotation * [1, 1, -1]
            yield rotation
    for seed in range(4):
        rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
        yield rotation * [1, 1, np.sign(np.linalg.det(rotation))]


@pytest.mark.parametrize("rotation", list(planes()), ids=[f"plane {i}" for i in range(16)])
def test_every_voxel_lies_where_it_was(tmp_path, rotation):
    """Slices sorted by position, in the direction of rows times columns: to RAS and back nothing moves."""
    true = grid(rotation)
    write_series(tmp_path, VALUES, true)
    image = read_image(tmp_path)
    assert image.grid.shape == SHAPE
    assert np.allclose(image.grid.affine, true.affine, atol=1e-6)
    assert np.array_equal(image.data, VALUES)


def test_slices_against_the_normal_are_turned(tmp_path):
    """An affine whose slices run against rows times columns comes back with its last axis reversed."""
    mirrored = np.diag([-1.0, -1.0, -1.0])
    write_series(tmp_path, VALUES, grid(mirrored))
    image = read_image(tmp_path)
    assert np.array_equal(image.data, VALUES[:, :, ::-1])
    for index in ([0, 0, 0], [3, 4, 5]):
        there = [*index[:2], SHAPE[2] - 1 - index[2]]
        assert np.allclose(image.grid.world(there), grid(mirrored).world(index), atol=1e-6)


def test_every_slice_has_its_own_scale(tmp_path):
    slopes = np.linspace(0.5, 2.0, SHAPE[2])
    write_series(tmp_path, np.rint(VALUES / slopes) * slopes, grid(), slopes=slopes)
    assert np.allclose(read_image(tmp_path).data, np.rint(VALUES / slopes) * slopes, rtol=1e-5)


def test_hounsfield_units(tmp_path):
    write_series(tmp_path, VALUES - 1000, grid(), modality="CT")
    assert np.array_equal(read_image(tmp_path).data, VALUES - 1000)
    assert find_series(tmp_path)[0].guess.contrast == "CT"


@pytest.mark.parametrize("how", BAD)
def test_bad_series(tmp_path, how):
    id, kind, text, spoil = BAD[how]
    spoil(write_series(tmp_path / "s", VALUES, grid(), EchoTime="20"))
    with pytest.raises(kind) as refusal:
        read_image(tmp_path / "s")
    assert refusal.value.id == id
    assert text in str(refusal.value)
    assert not any(planted in str(refusal.value) for planted in PLANTED)


def test_a_codec_that_is_not_there(tmp_path):
    from pydicom.encaps import encapsulate

    paths = write_series(tmp_path, VALUES, grid())
    data = dcmread(paths[0])
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.PixelData = encapsulate([b"\xff\x4f\xff\x51" + bytes(60)])
    save(data, paths[0])
    with pytest.raises(UnreadableFileError) as refusal:
        read_image(tmp_path)
    assert refusal.value.id == "B48"


def test_a_slice_that_cannot_be_read_is_not_passed_over(tmp_path):
    paths = write_series(tmp_path, VALUES, grid())
    paths[3].write_bytes(paths[3].read_bytes()[:400])
    with pytest.raises(TumoarError):
        read_image(tmp_path)


def test_foreign_files_are_passed_over(tmp_path):
    paths = write_series(tmp_path, VALUES, grid())
    (tmp_path / "README.txt").write_text("text")
    (tmp_path / "DICOMDIR").write_bytes(paths[0].read_bytes())
    (tmp_path / "folder.dcm").mkdir()
    (tmp_path / "LOCKFILE").write_bytes(b"x" * 500)
    assert np.array_equal(read_image(tmp_path).data, VALUES)


def test_more_files_than_a_study_has_are_not_opened(tmp_path, monkeypatch):
    paths = write_series(tmp_path, VALUES, grid())
    monkeypatch.setattr(dicom_folder, "MOST_FILES", len(paths))
    assert np.array_equal(read_image(tmp_path).data, VALUES)
    monkeypatch.setattr(dicom_folder, "MOST_FILES", len(paths) - 2)
    with pytest.raises(TumoarError, match="E10-files"):
        read_image(tmp_path)


@pytest.mark.parametrize(("told", "expected"), [("4", 4.0), ("0", 1.0), (None, 1.0)])
def test_a_slice_alone_is_as_thick_as_it_says(tmp_path, told, expected):
    edited(assign(SliceThickness=told))(write_series(tmp_path, VALUES[:, :, :1], grid()))
    assert read_image(tmp_path).grid.spacing[2] == pytest.approx(expected)


def test_no_preamble_and_hostile_strings(tmp_path):
    evil = "../../etc\\passwd;$(rm)"
    paths = write_series(tmp_path, VALUES, grid(), SeriesDescription=evil, ProtocolName="x" * 5000)
    for path in paths[:3]:
        path.write_bytes(path.read_bytes()[132:])
    paths[4].write_bytes(b"MZ" + b"\x90" * 126 + paths[4].read_bytes()[128:])
    image = read_image(tmp_path)
    assert np.array_equal(image.data, VALUES)
    assert "passwd" not in image.source


def test_sequences_without_end(tmp_path):
    paths = write_series(tmp_path, VALUES, grid())
    whole = paths[0].read_bytes()
    end_of_meta = 132 + 12 + int.from_bytes(whole[140:144], "little")
    deep = b"\x08\x00\x40\x11SQ\x00\x00\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff" * 20_000
    paths[0].write_bytes(whole[:end_of_meta] + deep)
    with pytest.raises(UnreadableFileError) as refusal:
        read_image(tmp_path)
    assert refusal.value.id == "B52"


def test_enhanced_multi_frame(tmp_path):
    save(enhanced(VALUES, grid()), tmp_path / "a.dcm")
    image = read_image(tmp_path)
    assert np.allclose(image.grid.affine, grid().affine, atol=1e-6)
    assert np.allclose(image.data, VALUES * np.arange(1, 9) + 5)
    assert image.grid.frame == "1.2.3"


def test_several_series_are_listed_and_one_is_named(tmp_path):
    write_series(tmp_path / "a", VALUES, grid(), SeriesDescription="t1_mprage post Gd", EchoTime="3",
                 RepetitionTime="9", InversionTime="900")  # fmt: skip
    write_series(tmp_path / "b", VALUES + 7, grid(), SeriesDescription="Planted^Nameofpatient t2_flair",
                 EchoTime="120", RepetitionTime="9000", InversionTime="2400")  # fmt: skip
    with pytest.raises(ChannelError, match="FOLDER#2") as refusal:
        read_image(tmp_path)
    assert "Planted" not in str(refusal.value)
    names = [s.guess.contrast for s in find_series(tmp_path)]
    assert sorted(names) == ["FLAIR", "T1c"]
    which = names.index("FLAIR") + 1
    assert np.array_equal(read_image(f"{tmp_path}#{which}").data, VALUES + 7)
    with pytest.raises(ChannelError, match="no series 3"):
        read_image(f"{tmp_path}#3")
    with pytest.raises(UnreadableFileError, match="no CT or MR series"):
        only_series((tmp_path / "empty").mkdir() or tmp_path / "empty")


GUESSES = [
    ({"SeriesDescription": "T1 POST", "ContrastBolusAgent": "Gd", "EchoTime": 10, "RepetitionTime": 600},
     "T1c", 0.9),
    ({"SeriesDescription": "t1_se_tra", "EchoTime": 10, "RepetitionTime": 600}, "T1", 0.7),
    ({"SeriesDescription": "T1 native", "EchoTime": 10, "RepetitionTime": 600}, "T1", 0.9),
    ({"SeriesDescription": "t2_tse", "EchoTime": 100, "RepetitionTime": 5000}, "T2", 0.9),
    ({"SeriesDescription": "t2 flair sag", "EchoTime": 390, "RepetitionTime": 5000, "InversionTime": 1800},
     "FLAIR", 0.9),
    ({"SeriesDescription": "ep2d_diff_trace", "EchoTime": 90, "RepetitionTime": 6000}, "diffusion", 0.7),
    ({"EchoTime": 100, "RepetitionTime": 5000}, "T2", 0.6),
    ({"SeriesDescription": "t1", "EchoTime": 100, "RepetitionTime": 5000}, "T1", 0.3),
    ({"SeriesDescription": "brain"}, "other", 0.1),
]  # fmt: skip


@pytest.mark.parametrize(("header", "contrast", "least"), GUESSES, ids=str)
def test_guesses(header, contrast, least):
    from tumoar.io.dicom_contrast import guess_contrast

    guess = guess_contrast(dataset(MR, **header))
    assert guess.contrast == contrast
    assert least <= guess.confidence <= least + 0.15


def test_two_patients_are_not_one_case(tmp_path):
    write_series(tmp_path / "a", VALUES, grid())
    write_series(tmp_path / "b", VALUES + 9, grid(), PatientBirthDate="19420313")
    with pytest.raises(GeometryError) as refusal:
        read_scans({"T1": tmp_path / "a", "T2": tmp_path / "b"})
    assert refusal.value.id == "B34"
    assert "1942" not in str(refusal.value)
    assert is_same_person(("a", "", "1"), ("a", "b", ""))
    assert not is_same_person(("a", "", "1"), ("a", "b", "2"))


def test_nothing_of_the_patient_in_reprs(tmp_path):
    write_series(tmp_path, VALUES, grid())
    series = only_series(tmp_path)
    assert not any(planted in repr(series) for planted in PLANTED)
    assert not any(planted in read_series(series).source for planted in PLANTED)
