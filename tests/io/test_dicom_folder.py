"""What lies beside the slices of a series: no slice goes missing unseen, nothing else is in the way."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from rt_files import PLANTED, save, write_series

from tumoar.geometry.image import Grid
from tumoar.io import dicom, dicom_folder
from tumoar.io.dicom import find_series, only_series
from tumoar.io.images import read_image, read_scan
from tumoar.preprocess.quality import check_image
from tumoar.vocabulary.errors import IntegrityError, TumoarError, UnreadableFileError
from tumoar.vocabulary.notes import Note

COUNT = 36
SHAPE = (6, 5, COUNT)
GRID = Grid(SHAPE, np.diag([-1.0, -1.5, 2.0, 1.0]))
VALUES = np.random.default_rng(0).integers(0, 900, SHAPE).astype(float)

NAMES = {
    "dcm": "slice{:02d}.dcm",
    "numbers": "IM{:04d}",
    "bare numbers": "{:08d}",
    "hexadecimal": "{:04X}F0",
    "number as suffix": "IM.{:04d}",
    "UID": "1.2.840.113619.2.{}.7",
    "word as suffix": "scan{:02d}.mr",
    "letters": "I{:d}_00",
}


def series(folder, pattern="IM{:04d}", **more):
    """A series in files named by their place in the stack."""
    paths = write_series(folder, VALUES, GRID, **more)
    return [p.rename(folder / pattern.format(k + 1)) for k, p in enumerate(paths)]


DAMAGE = {"empty": lambda c: b"", "zeroed": lambda c: bytes(len(c)), "cut": lambda c: c[:50]}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("names", NAMES)
def test_a_damaged_slice_at_the_end_of_a_stack_is_refused(tmp_path, names, how):
    paths = series(tmp_path, NAMES[names])
    for path in paths[26:]:
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.raises(UnreadableFileError) as refusal:
        read_image(tmp_path)
    assert "10 files among the slices cannot be read" in str(refusal.value)
    assert f"file: {paths[26].name} " in str(refusal.value)
    for path in paths[27:]:
        path.unlink()
    with pytest.raises(UnreadableFileError) as refusal:
        read_image(tmp_path)
    assert refusal.value.file == paths[26].name
    assert not any(planted in str(refusal.value) for planted in PLANTED)


@pytest.mark.parametrize("size", [140, 200, 400, 1000, -20])
def test_a_slice_that_ends_early_is_refused(tmp_path, size):
    paths = series(tmp_path)
    paths[-1].write_bytes(paths[-1].read_bytes()[:size])
    with pytest.raises(TumoarError, match=f"file: {paths[-1].name} "):
        read_image(tmp_path)


FOREIGN = {
    "README": b"text", "readme.txt": b"text", "Thumbs.db": b"\xd0\xcf\x11\xe0", ".DS_Store": bytes(6148),
    "report.pdf": b"%PDF-1.7", "key.jpg": b"\xff\xd8\xff", "VERSION": b"1.0", "DICOMDIR": b"x",
    "DICOMDIR;1": b"x", "dicomdir": b"x", "notes.txt": b"", "LOCKFILE": b"x" * 500, "._IM0003": b"\0\5\x16\7",
    "._slice03.dcm": b"\0\5\x16\7", "autorun.inf": b"[autorun]", "viewer.exe": b"MZ", "INDEX.HTM": b"<html>",
    "desktop.ini": b"", "export.log": bytes(10),
}  # fmt: skip


@pytest.mark.parametrize("names", NAMES)
def test_what_is_no_slice_is_passed_over(tmp_path, names):
    series(tmp_path, NAMES[names])
    for name, content in FOREIGN.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.dcm").mkdir()
    assert np.array_equal(read_image(tmp_path).data, VALUES)


def test_empty_files_where_no_slices_lie_are_passed_over(tmp_path):
    series(tmp_path / "s")
    (tmp_path / "IM0099").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "IM0001").write_bytes(bytes(500))
    assert np.array_equal(read_image(tmp_path).data, VALUES)


def test_a_slice_without_the_mark_of_dicom_is_read_among_its_like(tmp_path):
    paths = series(tmp_path, NAMES["word as suffix"])
    paths[7].write_bytes(paths[7].read_bytes()[132:])
    assert np.array_equal(read_image(tmp_path).data, VALUES)


# ---- what is no file ---------------------------------------------------------------------------------------


def in_time(read):
    """What a call raises; it has to come at once."""
    raised: list[BaseException] = []

    def run():
        try:
            read()
        except BaseException as error:  # handed over to the test
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    return raised[0] if raised else None


def pipe(path):
    os.mkfifo(path)


def listening(path):
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(path))


def link(target):
    return lambda path: path.symlink_to(target)


ODD = {
    "pipe": pipe,
    "socket": listening,
    "device": link("/dev/zero"),
    "dangling link": link("nowhere"),
    "loop": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["IM0036", "slice36.dcm"])
def test_what_is_no_file_in_the_place_of_a_slice_is_refused(tmp_path, monkeypatch, kind, name):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    folder = Path("s")
    series(folder, "IM{:04d}" if name == "IM0036" else "slice{:02d}.dcm")[-1].unlink()
    ODD[kind](folder / name)
    refusal = in_time(lambda: read_image(folder))
    assert isinstance(refusal, UnreadableFileError)
    assert refusal.id == "B1"
    assert refusal.file == name


def test_links_to_directories_are_not_followed(tmp_path):
    series(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    assert np.array_equal(read_image(tmp_path).data, VALUES)


@pytest.mark.parametrize("name", ["IM0036", "slice36.dcm", "README"])
def test_a_slice_that_may_not_be_opened_is_refused(tmp_path, monkeypatch, name):
    """Also what may be none: nobody can tell."""
    paths = series(tmp_path, "IM{:04d}" if name != "slice36.dcm" else "slice{:02d}.dcm")
    closed = tmp_path / name
    if name == "README":
        closed.write_text("text")
    else:
        assert closed == paths[-1]
    real = os.open

    def refused(path, *arguments, **more):
        if Path(path) == closed:
            raise PermissionError(13, "denied")
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UnreadableFileError, match=rf"E3-B1 .*no permission \| file: {name}"):
        read_image(tmp_path)


def test_a_directory_that_may_not_be_listed_is_refused(tmp_path, monkeypatch):
    series(tmp_path)
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refused(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UnreadableFileError, match=r"E3-B1 cannot read part of the folder \| file: closed"):
        read_image(tmp_path)


# ---- is it all? --------------------------------------------------------------------------------------------


def notes(folder, **more):
    return [note.text for s in find_series(folder) for note in s.notes]


def numbered(first, step=1):
    def edit(data, k):
        data.InstanceNumber = first + step * k

    return edit


def test_slices_missing_at_an_end_are_noted_where_a_counter_tells(tmp_path):
    for path in series(tmp_path / "acquisition", edit=numbered(1), ImagesInAcquisition=str(COUNT))[26:]:
        path.unlink()
    assert notes(tmp_path / "acquisition") == ["26 slices found, but the acquisition has 36"]
    for path in series(tmp_path / "numbers", edit=numbered(1))[:10]:
        path.unlink()
    told = "slice numbers run from 11 to 36, but 26 slices were found"
    assert notes(tmp_path / "numbers") == [told]
    image = read_image(tmp_path / "numbers")
    assert image.notes == (Note("B45", told, action="check that the series is complete"),)
    data = np.random.default_rng(0).normal(400, 50, (40, 40, 40))
    whole = type(image)(data, Grid(data.shape, np.eye(4)), "x", image.notes)
    assert check_image(whole, "T1", "MR") == [*image.notes]


@pytest.mark.parametrize(("first", "step"), [(0, 1), (1, 1), (1001, 1), (1, 2), (5, 4)])
def test_numbers_of_whole_series_are_not_noted(tmp_path, first, step):
    series(tmp_path, edit=numbered(first, step))
    assert notes(tmp_path) == []


def test_two_echoes_of_one_series_are_counted_together(tmp_path):
    def edit(data, k):
        data.InstanceNumber, data.EchoTime = k + 1, "20" if k % 2 else "90"

    series(tmp_path, edit=edit, ImagesInAcquisition=str(COUNT))
    assert len(find_series(tmp_path)) == 2
    assert notes(tmp_path) == []


@pytest.mark.parametrize("value", ["", "0", "-5", "99999999999", "1", "36"])
def test_counters_that_say_nothing_are_not_believed(tmp_path, value):
    series(tmp_path, ImagesInAcquisition=value)
    assert notes(tmp_path) == []


# ---- what was hashed is what was read ----------------------------------------------------------------------


def test_the_digest_is_that_of_the_files(tmp_path):
    series(tmp_path)
    assert read_scan(tmp_path).sha256 == dicom.digest_of(only_series(tmp_path))


def test_a_slice_that_changes_after_its_place_was_judged_is_refused(tmp_path):
    paths = series(tmp_path)
    found = only_series(tmp_path)
    for keyword, value in (
        ("PatientID", "other"),
        ("ImagePositionPatient", [0, 0, 999]),
        ("SOPInstanceUID", "1.2.3"),
        ("RescaleSlope", "2"),
    ):
        whole = paths[3].read_bytes()
        data = dcmread(paths[3])
        setattr(data, keyword, value)
        save(data, paths[3])
        with pytest.raises(IntegrityError, match="E12-changed file changed while it was read"):
            dicom.read_series(found)
        paths[3].write_bytes(whole)
    assert np.array_equal(dicom.read_series(found).data, VALUES)


def test_the_list_of_files_is_bounded_while_it_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(dicom_folder, "MOST_FILES", 50)
    for n in range(60):
        (tmp_path / f"{n}.txt").touch()
    with pytest.raises(TumoarError, match="E10-files"):
        find_series(tmp_path)
