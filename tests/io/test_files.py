"""The one door through which files are opened."""

from __future__ import annotations

import os
import threading

import pytest

from tumoar.io.files import open_file, read_bytes, read_text, read_toml
from tumoar.vocabulary.errors import ResourceError, TumoarError, UnreadableFileError, UsageError


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_regular_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bytes(tmp_path / "a", "the file", 3) == b"abc"


def test_a_pipe_is_refused_and_not_waited_for(fifo):
    told: list[TumoarError] = []

    def read():
        with pytest.raises(UnreadableFileError, match="not a regular file") as refusal:
            read_bytes(fifo, "the dose", 10)
        told.append(refusal.value)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(5)
    assert told, "it waits for a writer"


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "."])
def test_devices_and_folders_are_refused(name):
    with pytest.raises(UnreadableFileError, match=r"not a regular file|is a directory"):
        read_bytes(name, "the dose", 10)


def test_a_file_beyond_the_bound_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(ResourceError, match="too large"):
        read_bytes(tmp_path / "a", "the dose", 3)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"ab")
    real = os.fstat

    def grown(handle):
        state = real(handle)
        path.write_bytes(b"abcdef")
        return state

    monkeypatch.setattr(os, "fstat", grown)
    with pytest.raises(ResourceError, match="too large"):
        read_bytes(path, "the dose", 3)


@pytest.mark.parametrize("name", ["missing", "a\0b", "x" * 300, "empty"])
def test_names_that_lead_nowhere_are_refused(tmp_path, name):
    (tmp_path / "empty").touch()
    with pytest.raises(UnreadableFileError), open_file(str(tmp_path / name), "the dose", 10):
        pass


def test_text_has_to_be_utf_8_and_may_begin_with_a_mark(tmp_path):
    (tmp_path / "a").write_bytes("é".encode("latin-1"))
    (tmp_path / "b").write_bytes("\ufeffé".encode())
    with pytest.raises(UnreadableFileError, match="not text in UTF-8"):
        read_text(tmp_path / "a", "the list")
    assert read_text(tmp_path / "b", "the list") == "é"


@pytest.mark.parametrize(
    "text", ["a =", "a = " + "[" * 20_000, "a = 1\na = 2", "a = 2021-13-45", "\0", "a = " + "9" * 5000]
)
def test_toml_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "a").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="TOML"):
        read_toml(tmp_path / "a", "the settings")
