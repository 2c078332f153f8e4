"""Damaged files: a refusal or the very same image, never another exception, never another place in space."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from fuzzing import DATA, TRAPS, VERSIONS, damaged_nifti
from hypothesis import given, settings
from hypothesis import strategies as st
from nifti_files import AFFINE

from tumoar.errors import TumoarError
from tumoar.io.nifti import read_nifti


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "a.nii"


def read(path, raw):
    """The image, or None if it was refused; nothing but a refusal may come."""
    path.write_bytes(raw)
    try:
        return read_nifti(path, max_bytes=10**7)
    except TumoarError as error:
        refusal = str(error)
    assert "Jane" not in refusal
    return None


@st.composite
def one_field_changed(draw):
    layout, raw = VERSIONS[draw(st.sampled_from([1, 2]))]
    name = draw(st.sampled_from(layout.names))
    dtype, start = layout.fields[name][:2]
    element = dtype.base.itemsize if dtype.base.kind != "S" else dtype.itemsize
    at = start + element * draw(st.integers(0, dtype.itemsize // element - 1))
    if dtype.base.kind == "f" and draw(st.booleans()):
        code = "<f" if element == 4 else "<d"
        change = struct.pack(code, draw(st.sampled_from(TRAPS)))
    elif draw(st.booleans()):
        change = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
        at = start
    else:
        change = draw(st.binary(min_size=element, max_size=element))
    return raw[:at] + change + raw[at + len(change) :]


def require_same_place(path, raw):
    image = read(path, raw)
    if image is not None:
        np.testing.assert_allclose(image.grid.spacing, [1.5, 2.0, 1.25], rtol=0.01)
        assert np.abs((image.grid.affine - AFFINE) @ [5, 6, 7, 1]).max() <= 0.1


@settings(max_examples=500, deadline=None)
@given(raw=one_field_changed())
def test_a_changed_field_never_moves_the_image(path, raw):
    require_same_place(path, raw)


@pytest.mark.slow
def test_twenty_thousand_damaged_files(path, record_property):
    found = [damaged_nifti(path, number) for number in range(20_000)]
    assert {how for how, was_read in found if was_read} == {"field", "bytes", "gzip"}
    record_property("tried", len(found))


@settings(max_examples=300, deadline=None)
@given(
    version=st.sampled_from([1, 2]),
    changes=st.lists(st.tuples(st.integers(0, 543), st.integers(0, 255)), max_size=6),
)
def test_changed_bytes_give_a_refusal_or_an_image(path, version, changes):
    raw = bytearray(VERSIONS[version][1])
    for at, value in changes:
        raw[at] = value
    read(path, bytes(raw))


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3))
def test_a_changed_gzip_stream_gives_a_refusal_or_the_same_image(path, changes):
    raw = bytearray(gzip.compress(VERSIONS[1][1], mtime=0))
    for at, value in changes:
        raw[at % len(raw)] ^= value
    image = read(path, bytes(raw))
    if image is not None:
        np.testing.assert_array_equal(image.data, DATA)
        np.testing.assert_array_equal(image.grid.affine, AFFINE)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_cut_anywhere_is_refused(path, version, pack):
    raw = pack(VERSIONS[version][1])
    assert read(path, raw) is not None
    for length in [*range(0, len(raw), 16), len(raw) - 1]:
        assert read(path, raw[:length]) is None
