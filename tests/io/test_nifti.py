"""Reading and writing NIfTI: what is good comes through unchanged, in every variant of the format."""

from __future__ import annotations

import errno
import gzip
import os

import nibabel as nib
import numpy as np
import pytest
from nifti_files import AFFINE, SHAPE, content, head, header, put, put_pair
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.orientation import reorient, to_native
from tumoar.io import nifti
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.simulate.orders import ORDERS, stored
from tumoar.version import __version__
from tumoar.vocabulary.errors import IntegrityError, OutputError, TumoarError

DTYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


def oblique(angles=(5, -8, 20), spacing=(1.0, 1.5, 2.0)):
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("zyx", angles, degrees=True).as_matrix() * spacing
    affine[:3, 3] = [-90, 40.5, -12.25]
    return affine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("version", [1, 2])
def test_values_types_and_byte_orders(tmp_path, dtype, order, version):
    data = np.random.default_rng(0).integers(0, 100, (3, 4, 5)).astype(dtype)
    image = read_nifti(put(tmp_path / "a.nii", data, order=order, version=version))
    assert image.data.dtype == np.dtype(dtype)
    assert image.data.dtype.isnative
    np.testing.assert_array_equal(image.data, data)
    np.testing.assert_array_equal(image.grid.affine, AFFINE)
    assert image.source == "a.nii"


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("axes", "flips"), ORDERS)
def test_every_storage_order_is_one_image_in_world_space(tmp_path, axes, flips, version, name):
    """Two marked voxels at known places: the canonical image is the same bits, left stays left."""
    data = np.random.default_rng(1).integers(0, 90, (3, 4, 5)).astype(np.int16)
    data[0, 1, 2], data[2, 1, 2] = 1000, 2000
    ras = Image(
        data,
        Grid(data.shape, np.diag([1.5, 2.0, 1.25, 1]) + np.pad([[-7.5], [3.25], [40]], ((0, 1), (3, 0)))),
    )
    native = stored(ras, axes, flips)
    image = read_nifti(put(tmp_path / name, native.data, native.grid.affine, version=version))
    np.testing.assert_array_equal(image.data, native.data)
    turned, _ = reorient(image)
    np.testing.assert_array_equal(turned.data, data)
    assert turned.grid == ras.grid
    (left,), (right,) = np.argwhere(turned.data == 1000), np.argwhere(turned.data == 2000)
    np.testing.assert_array_equal(turned.grid.world(left), ras.grid.world([0, 1, 2]))
    assert turned.grid.world(left)[0] < turned.grid.world(right)[0]


# Angles, spacing, and what the header leaves out.
PLACES = {
    "straight": ((0, 0, 0), (1.0, 1.0, 1.0), {}),
    "oblique": ((12, -20, 7), (1.0, 1.0, 3.0), {}),
    "halfway": ((45, 0, 0), (1.0, 1.5, 2.0), {}),
    "sform": ((5, 30, -3), (0.5, 0.7, 1.2), {"q": False}),
    "qform": ((-40, 10, 20), (0.9, 0.9, 5.0), {"s": False}),
    "scaled": ((1, 2, 3), (2.0, 2.0, 2.0), {"scl_slope": 0.5, "scl_inter": -7}),
}


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("name", "version", "order"),
    [("a.nii", 1, "<"), ("a.nii.gz", 1, ">"), ("a.nii", 2, ">"), ("a.hdr", 2, "<")],
)
def test_every_storage_order_at_every_place(tmp_path, place, name, version, order, record_property):
    """The values at given points of the world do not depend on how the image is stored."""
    angles, spacing, options = PLACES[place]
    data = np.random.default_rng(1).integers(0, 900, (5, 6, 7)).astype(np.int16)
    ras = Image(data, Grid(data.shape, oblique(angles, spacing)))
    expected = data * 0.5 - 7 if place == "scaled" else data
    write = put_pair if name.endswith(".hdr") else put
    record_property("tried", len(ORDERS))
    for axes, flips in ORDERS:
        native = stored(ras, axes, flips)
        path = write(
            tmp_path / name, native.data, native.grid.affine, version=version, order=order, **options
        )
        turned, orientation = reorient(read_nifti(path))
        points = turned.grid.world(np.moveaxis(np.indices(turned.grid.shape), 0, -1))
        index = ras.grid.index(points)
        np.testing.assert_allclose(index, index.round(), atol=1e-3)
        i, j, k = np.moveaxis(index.round().astype(int), -1, 0)
        assert np.array_equal(turned.data, expected[i, j, k])
        assert np.array_equal(to_native(turned.data, orientation), read_nifti(path).data)


@pytest.mark.parametrize("forms", [{}, {"q": False}, {"s": False}], ids=["both", "sform", "qform"])
@pytest.mark.parametrize("version", [1, 2])
def test_oblique_affines_agree_with_nibabel(tmp_path, forms, version):
    path = put(tmp_path / "a.nii", head((9, 8, 7)), oblique(), version=version, **forms)
    np.testing.assert_allclose(read_nifti(path).grid.affine, nib.load(path).affine, atol=1e-5)


@pytest.mark.parametrize("angle", [180, 179.99, 179.95, 179.9, 180.02])
@pytest.mark.parametrize("axis", "xyz")
def test_a_half_turn_does_not_make_two_positions(tmp_path, angle, axis):
    """float32 leaves almost nothing of the quaternion's real part there; that is no second position."""
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler(axis, angle, degrees=True).as_matrix()
    shape = (300, 2, 300) if axis == "y" else (2, 300, 300) if axis == "x" else (300, 300, 2)
    image = read_nifti(put(tmp_path / "a.nii", np.zeros(shape, np.uint8), affine))
    np.testing.assert_allclose(image.grid.affine, affine, atol=1e-7)


@pytest.mark.parametrize(("form", "x"), [("s", 30.25), ("q", 30.75)])
def test_use_form_settles_two_positions(tmp_path, form, x):
    path = put(tmp_path / "a.nii", qoffset_x=30.75)
    assert read_nifti(path, use_form=form).grid.affine[0, 3] == x


def test_a_tenth_of_a_millimeter_between_the_forms_is_rounding(tmp_path):
    assert read_nifti(put(tmp_path / "a.nii", qoffset_x=30.34)).grid.affine[0, 3] == 30.25


@pytest.mark.parametrize(
    "fields",
    [
        {"affine": np.diag([10, 10, 10, 1.0])},
        {"affine": np.diag([0.25, 0.25, 0.25, 1.0])},
        {"q": False, "srow_x": [-1.5, 1.4e-3, 0, 30.25]},
        {"q": False, "pixdim_1": 1.514},
        {"q": False, "srow_z_3": 1e5},
        {"q": False, "pixdim_0": 0},
        {"sform_code": 5, "qform_code": 5},
        {"xyzt_units": 0},
        {"xyzt_units": 2 | 8},
    ],
    ids=str,
)
def test_at_the_edge_of_what_is_accepted(tmp_path, fields):
    path = put(tmp_path / "a.nii", **fields)
    np.testing.assert_array_equal(read_nifti(path).grid.affine, nib.load(path).get_sform())


@pytest.mark.parametrize("given", ["a.hdr", "a.img"])
@pytest.mark.parametrize("version", [1, 2])
def test_pairs_are_read_by_either_name(tmp_path, given, version):
    data = head()
    put_pair(tmp_path / "a.hdr", data, version=version)
    np.testing.assert_array_equal(read_nifti(tmp_path / given).data, data)


def test_a_compressed_pair(tmp_path):
    data = head()
    (tmp_path / "a.hdr.gz").write_bytes(gzip.compress(header(data, single=False)))
    (tmp_path / "a.img.gz").write_bytes(gzip.compress(data.tobytes(order="F")))
    np.testing.assert_array_equal(read_nifti(tmp_path / "a.img.gz").data, data)


def test_the_partner_that_is_missing_is_named_as_its_header_is(tmp_path):
    (tmp_path / "a.hdr.gz").write_bytes(gzip.compress(header(head(), single=False)))
    with pytest.raises(TumoarError, match=r"E3-B1 .*file: a\.img\.gz"):
        read_nifti(tmp_path / "a.hdr.gz")


@pytest.mark.parametrize(("more", "is_read"), [(1000, True), (nifti.CHUNK - 1, True), (nifti.CHUNK, False)])
def test_a_header_of_a_pair_may_hold_extensions_up_to_a_megabyte(tmp_path, more, is_read):
    put_pair(tmp_path / "a.hdr", head())
    with open(tmp_path / "a.hdr", "ab") as file:
        file.write(bytes(more))
    if is_read:
        np.testing.assert_array_equal(read_nifti(tmp_path / "a.hdr").data, head())
    else:
        with pytest.raises(TumoarError, match=r"E3-B5 stream longer .*file: a\.hdr"):
            read_nifti(tmp_path / "a.hdr")


def test_header_extensions_are_read_over(tmp_path):
    data = head((3, 4, 5))
    block = header(data, vox_offset=352 + 64)
    extension = (
        b"\1\0\0\0" + (64).to_bytes(4, "little") + (6).to_bytes(4, "little") + b"Jane Doe".ljust(56, b"\0")
    )
    (tmp_path / "a.nii").write_bytes(block + extension + data.tobytes(order="F"))
    np.testing.assert_array_equal(read_nifti(tmp_path / "a.nii").data, data)


@pytest.mark.parametrize("dims", [(34, 36, 40, 1), (34, 36, 40, 1, 1, 1, 1)])
def test_trailing_ones_are_squeezed(tmp_path, dims):
    data = head()
    image = read_nifti(put(tmp_path / "a.nii", data.reshape(dims)))
    assert image.grid.shape == SHAPE
    np.testing.assert_array_equal(image.data, data)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4", "f8"])
def test_scaling(tmp_path, dtype):
    data = np.random.default_rng(3).integers(0, 100, (3, 4, 5)).astype(dtype)
    path = put(tmp_path / "a.nii", data, scl_slope=0.25, scl_inter=-1024)
    image = read_nifti(path)
    assert image.data.dtype == (np.float64 if dtype in ("i4", "f8") else np.float32)
    np.testing.assert_array_equal(image.data, data * 0.25 - 1024)
    np.testing.assert_array_equal(image.data, nib.load(path).get_fdata())


@pytest.mark.parametrize("slope", [0, np.nan])
def test_slope_zero_and_nan_mean_unscaled(tmp_path, slope):
    data = head((3, 4, 5))
    image = read_nifti(put(tmp_path / "a.nii", data, scl_slope=slope, scl_inter=np.nan))
    assert image.data.dtype == np.int16
    np.testing.assert_array_equal(image.data, data)


# ---- writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("dtype", [*DTYPES, "?"])
def test_read_after_write_is_identity(tmp_path, dtype, name):
    data = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, (4, 5, 6)).astype(dtype)
    grid = Grid(data.shape, AFFINE)
    write_nifti(tmp_path / name, data, grid)
    image = read_nifti(tmp_path / name)
    np.testing.assert_array_equal(image.data, data)
    assert image.data.dtype == (np.uint8 if dtype == "?" else np.dtype(dtype))
    assert image.grid == grid


@pytest.mark.parametrize(("axes", "flips"), ORDERS[::5])
def test_labels_go_back_to_the_grid_of_the_input_exactly(tmp_path, axes, flips):
    ras = Image(head((9, 8, 7)), Grid((9, 8, 7), oblique().astype(np.float32).astype(float)))
    native = stored(ras, axes, flips)
    image = read_nifti(put(tmp_path / "in.nii.gz", native.data, native.grid.affine))
    turned, orientation = reorient(image)
    labels = (turned.data > 200).astype(np.uint8)
    write_nifti(tmp_path / "out.nii.gz", to_native(labels, orientation), orientation.native)
    out = read_nifti(tmp_path / "out.nii.gz")
    assert out.grid == image.grid
    np.testing.assert_array_equal(out.data, image.data > 200)


def test_voxels_without_a_value_are_written_too(tmp_path):
    data = head(dtype=np.float32)
    data[3, 4, 5], data[6, 7, 8] = np.nan, np.inf
    write_nifti(tmp_path / "a.nii.gz", data, Grid(data.shape, AFFINE))
    np.testing.assert_array_equal(read_nifti(tmp_path / "a.nii.gz").data, data)


def test_both_forms_are_written_and_no_foreign_text(tmp_path):
    affine = oblique()
    write_nifti(tmp_path / "a.nii", head((9, 8, 7)), Grid((9, 8, 7), affine))
    block = nib.load(tmp_path / "a.nii").header
    assert (int(block["qform_code"]), int(block["sform_code"])) == (1, 1)
    np.testing.assert_allclose(block.get_qform(), affine, atol=1e-4)
    np.testing.assert_allclose(block.get_sform(), affine, atol=1e-5)
    assert block["descrip"].item().decode() == f"tumoar {__version__}"
    assert not block["db_name"].item()
    assert not block["aux_file"].item()
    assert not block["intent_name"].item()


def test_a_grid_a_rotation_cannot_express_has_one_form(tmp_path):
    """A shear below the limit of what is read, too large for a rotation over a whole head."""
    affine = np.eye(4)
    affine[0, 1] = 9e-4
    write_nifti(tmp_path / "a.nii", np.zeros((4, 250, 4), np.uint8), Grid((4, 250, 4), affine))
    np.testing.assert_allclose(read_nifti(tmp_path / "a.nii").grid.affine, affine, atol=1e-9)


def test_the_same_image_is_the_same_bytes(tmp_path):
    for name in ("a.nii.gz", "b.nii.gz"):
        write_nifti(tmp_path / name, head(), Grid(SHAPE, AFFINE))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.nii.gz"
    write_nifti(path, head(), Grid(SHAPE, AFFINE))
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "no space", "/home/Jane Doe")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OutputError, match=r"^E9-B58 cannot write \| file: a.nii.gz \| found: no space left"
    ) as stop:
        write_nifti(path, head(seed=1), Grid(SHAPE, AFFINE))
    assert "Jane" not in str(stop.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.nii.gz"]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(OutputError, match="no such file or directory"):
        write_nifti(tmp_path / "none" / "a.nii", head(), Grid(SHAPE, AFFINE))


@pytest.mark.parametrize("damage", ["value", "affine", "cut"])
def test_what_does_not_read_back_is_not_published(tmp_path, monkeypatch, damage):
    def write(file, data, grid, *, compressed):
        affine = grid.affine + np.eye(4)[:, [3, 1, 2, 0]] * 0.5 * (damage == "affine")
        data = data + (damage == "value")
        raw = content(data.astype(np.int16), affine)
        file.write(raw[:-1] if damage == "cut" else raw)

    monkeypatch.setattr(nifti, "_write", write)
    with pytest.raises(IntegrityError, match=r"^E12-written"):
        write_nifti(tmp_path / "a.nii", head(), Grid(SHAPE, AFFINE))
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_output_is_replaced_not_followed(tmp_path):
    other = tmp_path / "other.nii"
    other.write_bytes(b"precious")
    (tmp_path / "a.nii").symlink_to(other)
    write_nifti(tmp_path / "a.nii", head(), Grid(SHAPE, AFFINE))
    assert other.read_bytes() == b"precious"
    assert not (tmp_path / "a.nii").is_symlink()


def test_wrong_use_of_the_writer_is_named(tmp_path):
    with pytest.raises(ValueError, match="grid's shape"):
        write_nifti(tmp_path / "a.nii", np.zeros((1, 2, 3)), Grid(SHAPE, AFFINE))
    with pytest.raises(ValueError, match="got float16"):
        write_nifti(tmp_path / "a.nii", head(dtype=np.float16), Grid(SHAPE, AFFINE))
    with pytest.raises(ValueError, match=r"\.nii"):
        write_nifti(tmp_path / "a.img", head(), Grid(SHAPE, AFFINE))


# ---- real images -------------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "patients/BraTS2021_00006/t1c.nii.gz",
        "patients/BraTS-GLI-00000-000/tumor.nii.gz",
        "patients/TCGA-02-0054/flair.nii.gz",
        "heads/head_01.nii.gz",
        "tumors/reference/brats_truth_a.nii.gz",
    ],
)
def test_real_images_are_read_as_nibabel_reads_them(shared_data, name):
    image, reference = read_nifti(shared_data / name), nib.load(shared_data / name)
    assert np.array_equal(image.data, np.asanyarray(reference.dataobj))
    np.testing.assert_allclose(image.grid.affine, reference.affine, atol=1e-6)


@pytest.mark.shared
@pytest.mark.long
def test_all_images_load(shared_data):
    for path in shared_data.rglob("*.nii.gz"):
        try:
            reorient(read_nifti(path))
        except TumoarError as refusal:
            pytest.fail(str(refusal))
