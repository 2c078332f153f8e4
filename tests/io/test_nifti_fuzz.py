"""Damaged files: a refusal or the very same image, never another exception, never another place in space."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from fuzzing import DATA, TRAPS, VERSIONS, damaged_nifti
from hypothesis import given, settings
from hypothesis import strategies as st
from nifti_files import AFFINE, content

from tumoar.io.nifti import read_nifti
from tumoar.vocabulary.errors import TumoarError


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


@pytest.mark.long
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


# ---- headers by their grammar ------------------------------------------------------------------------------

# Numbers at and beyond the edges of what a field may hold, by the kind of the field.
EDGES = {
    "i": [0, 1, -1, 2, 3, 7, 8, 127, 255, 256, 32767, -32768],
    "u": [0, 1, 2, 3, 10, 18, 255],
    "f": [*TRAPS, 1e-9, 0.2, 0.1999, 10.0, 10.01, 1e5, 1e9, -1e30, 3.4e38, 351.0, 352.5, 1e6],
}
WANTED = [
    "dim", "pixdim", "datatype", "bitpix", "vox_offset", "scl_slope", "scl_inter", "xyzt_units", "qform_code",
    "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "srow_x", "srow_y", "srow_z",
    "sizeof_hdr", "magic", "intent_code",
]  # fmt: skip


@st.composite
def headers(draw):
    """A header with one to four of its fields at an edge, in either byte order."""
    version, order = draw(st.sampled_from([1, 2])), draw(st.sampled_from("<>"))
    raw = content(DATA, version=version, order=order)
    layout = VERSIONS[version][0].newbyteorder(order)
    block = np.frombuffer(raw[: layout.itemsize], layout).copy()
    for name in draw(st.lists(st.sampled_from(WANTED), min_size=1, max_size=4, unique=True)):
        kind = layout[name].base.kind
        if kind == "S":
            block[name] = draw(st.sampled_from([b"", b"n+1", b"ni1", b"n+2", b"xxxx"]))
            continue
        value = draw(st.sampled_from(EDGES[kind]))
        with np.errstate(over="ignore"):
            if layout[name].shape:
                block[name][0, draw(st.integers(0, layout[name].shape[0] - 1))] = value
            elif kind == "f" or np.iinfo(layout[name]).min <= value <= np.iinfo(layout[name]).max:
                block[name] = value
    body = raw[layout.itemsize :]
    size = draw(st.sampled_from([len(body)] * 6 + [0, 4, len(body) - 1, len(body) + 1]))
    whole = block.tobytes() + body[:size] + bytes(max(0, size - len(body)))
    return gzip.compress(whole, 1) if draw(st.booleans()) else whole


@settings(max_examples=400, deadline=None, derandomize=True)
@given(raw=headers(), form=st.sampled_from([None, None, "s", "q"]))
def test_a_header_at_the_edges_gives_a_refusal_or_an_image_of_possible_size(path, raw, form):
    path.write_bytes(raw)
    try:
        image = read_nifti(path, use_form=form, max_bytes=10**7)
    except TumoarError:
        return
    assert 0.2 <= image.grid.spacing.min() <= image.grid.spacing.max() <= 10
    assert np.isfinite(image.grid.affine).all()
    assert np.abs(image.grid.affine).max() <= 1e5
    assert image.data.size * image.data.itemsize <= 10**7
