"""Bad NIfTI files, each with its id, exit code and sentence; and odd ones that are read all the same."""

from __future__ import annotations

import gzip
import os

import numpy as np
from nifti_files import SHAPE, content, head, header, put, put_pair

IDENTITY = np.diag([1.5, 1.5, 1.5, 1])


def raw(path, data):
    path.write_bytes(data)
    return path


def plain(data):
    return lambda folder: raw(folder / "a.nii", data)


def zipped(data):
    return lambda folder: raw(folder / "a.nii.gz", data)


def nii(data=None, *affine, **fields):
    return lambda folder: put(folder / "a.nii", data, *affine, **fields)


def broken_crc(data):
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


def with_signal(value, share):
    data = head(dtype=np.float32)
    data[(np.random.default_rng(0).random(SHAPE) < share) & (data > 100)] = value
    return data


def sheared(cosine):
    affine = IDENTITY.copy()
    affine[0, 1] = cosine * 1.5
    return affine


def scaled_axis(size):
    return np.diag([1.5, size, 1.5, 1])


def fifo(path):
    os.mkfifo(path)
    return path


def folder(path):
    path.mkdir()
    return path


GOOD = content(head())
ZIPPED = gzip.compress(GOOD)
HUGE = [3, 32767, 32767, 32767, 1, 1, 1, 1]
HUGER = [3, 2**40, 2**40, 2**40, 1, 1, 1, 1]
NO_PLANE = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
NAN = np.full(SHAPE, np.nan, np.float32)
# id, exit code, what the sentence holds, the bad file
REFUSED = {
    "missing": ("B1", 3, "cannot read the image: no such file", lambda d: d / "a.nii"),
    "empty folder": ("B1", 3, "in this folder", lambda d: folder(d / "a.nii")),
    "no regular file": ("B1", 3, "not a regular file", lambda d: fifo(d / "a.nii")),
    "through a file": ("B1", 3, "not possible for this disk", lambda d: raw(d / "b.nii", GOOD) / "a.nii"),
    "name too long": ("B1", 3, "cannot read the image", lambda d: d / ("a" * 300)),
    "missing .img": ("B1", 3, "file: a.img", lambda d: raw(d / "a.hdr", header(NAN, single=False))),
    "empty": ("B2", 3, "empty file", plain(b"")),
    "empty .gz": ("B2", 3, "empty file", zipped(b"")),
    "empty .hdr": ("B2", 3, "empty file", lambda d: raw(d / "a.hdr", b"")),
    "cut": ("B3", 3, f"expected {len(GOOD)} bytes, found 20000", plain(GOOD[:20000])),
    "one byte short": ("B3", 3, "shorter than header", plain(GOOD[:-1])),
    "one byte short in gzip": ("B3", 3, "shorter", zipped(gzip.compress(GOOD[:-1]))),
    "cut header": ("B3", 3, "200 of 348 bytes", plain(GOOD[:200])),
    "hopeless gzip": ("B3", 3, "shorter", zipped(gzip.compress(header(NAN, dim_1=500, dim_2=500)))),
    "cut gzip": ("B4", 3, "gzip stream damaged", zipped(ZIPPED[:-9])),
    "cut gzip end": ("B4", 3, "gzip stream damaged", zipped(ZIPPED[:-1])),
    "broken sum": ("B4", 3, "gzip stream damaged", zipped(broken_crc(ZIPPED))),
    "junk after gzip": ("B4", 3, "gzip", zipped(ZIPPED + b"junk")),
    "bomb": ("B5", 3, "stream longer than", zipped(ZIPPED + gzip.compress(bytes(2**20)) * 2000)),
    "long": ("B5", 3, "stream longer than", plain(GOOD + b"\0")),
    "huge": ("B6", 10, "needs 281 TB, limit 1.61 GB", nii(bitpix=64, datatype=64, dim=HUGE)),
    "huge gzip": ("B6", 10, "needs", lambda d: put(d / "a.nii.gz", version=2, dim=HUGER)),
    "far data": ("B6", 10, "image too large", nii(vox_offset=2.0**40)),
    "text": ("B7", 3, "not a scalar NIfTI", plain(b"Jane Doe, born 1970")),
    "two bytes": ("B7", 3, "not a scalar NIfTI", plain(b"ab")),
    "three bytes": ("B7", 3, "not a scalar NIfTI", plain(b"abc")),
    "magic": ("B7", 3, "not a scalar NIfTI", nii(magic=b"nii")),
    "line ends": ("B7", 3, "not a scalar NIfTI", nii(version=2, eol_check=[10, 10, 26, 10])),
    "RGB": ("B7", 3, "data type 128", nii(datatype=128, bitpix=24)),
    "complex": ("B7", 3, "data type 32", nii(datatype=32, bitpix=64)),
    "long double": ("B7", 3, "data type 1536", nii(datatype=1536, bitpix=128)),
    "bits": ("B7", 3, "data type 4 with 8 bits", nii(bitpix=8)),
    "no dimension": ("B7", 3, "0 dimensions", nii(dim_0=0)),
    "eight dimensions": ("B7", 3, "8 dimensions", nii(dim_0=8)),
    "negative dimension": ("B7", 3, "-36", nii(dim_2=-36)),
    "data in header": ("B7", 3, "data offset 0", nii(vox_offset=0)),
    "data between bytes": ("B7", 3, "data offset 352.5", nii(vox_offset=352.5)),
    "no data": ("B7", 3, "a header without its data", nii(single=False)),
    "Analyze": ("B10", 4, "Analyze has no left/right", lambda d: put_pair(d / "a.hdr", head(), magic=b"")),
    "Analyze, big-endian": (
        "B10", 4, "Analyze has no left/right", lambda d: put_pair(d / "a.hdr", head(), magic=b"", order=">")
    ),
    "Analyze by its .img": (
        "B10", 4, "Analyze has", lambda d: put_pair(d / "a.hdr", head(), magic=b"").with_suffix(".img")
    ),
    "no form": ("B11", 4, "neither sform nor qform is set", nii(q=False, s=False)),
    "unknown form": ("B11", 4, "sform_code 6", nii(sform_code=6)),
    "negative form": ("B11", 4, "qform_code -1", nii(qform_code=-1)),
    "two positions": ("B12", 4, "differ by up to 4.3 mm", nii(qoffset_x=30.25 + 4.3)),
    "two sides": ("B12", 4, "two different positions", nii(pixdim_0=1)),
    "two tilts": ("B12", 4, "two different positions", nii(affine=IDENTITY, quatern_b=0.01)),
    "voxel size 0": ("B13", 4, "voxel size not usable", nii(pixdim_2=0)),
    "voxel size below 0": ("B13", 4, "voxel size not usable", nii(pixdim_1=-1.5)),
    "voxel size NaN": ("B13", 4, "voxel size not usable", nii(pixdim_3=np.nan)),
    "affine NaN": ("B13", 4, "position not usable", nii(srow_y_1=np.nan)),
    "affine Inf": ("B13", 4, "position not usable", nii(s=False, qoffset_z=np.inf)),
    "far away": ("B13", 4, "position not usable", nii(q=False, srow_z_3=1e9)),
    "rotation": ("B13", 4, "found: b² + c² + d² is 1.62", nii(quatern_b=0.9, quatern_c=0.9)),
    "no side": ("B13", 4, "side of the qform", nii(s=False, pixdim_0=0)),
    "flat": ("B14", 4, "axes not independent", nii(q=False, srow_z=[0, 0, 0, 7])),
    "parallel": ("B14", 4, "axes not orthogonal", nii(affine=NO_PLANE, q=False)),
    "shear": ("B14", 4, "shear 0.002", nii(affine=sheared(2e-3), q=False)),
    "spacing": ("B15", 4, "1.5 vs 1.41 mm", nii(q=False, pixdim_1=1.41)),
    "spacing of slices": ("B15", 4, "1.25 vs 1.3 mm", nii(q=False, pixdim_3=1.3)),
    "spacing in NIfTI-2": ("B15", 4, "2 vs 1.9 mm", nii(q=False, pixdim_2=1.9, version=2)),
    "meters": ("B16", 4, "units? | file: a.nii | found: meters", nii(xyzt_units=1)),
    "microns": ("B16", 4, "units? | file: a.nii | found: microns", nii(xyzt_units=3 | 8)),
    "size 0.001": ("B16", 4, "outside 0.2–10 mm; units?", nii(affine=scaled_axis(0.001))),
    "size 1000": ("B16", 4, "1.5×1000×1.5 mm", nii(affine=scaled_axis(1000.0))),
    "24 volumes": ("B17", 5, "4-D image with 24 volumes", nii(np.zeros((34, 36, 40, 24), np.int16))),
    "vectors": ("B17", 5, "5-D image with 3 volumes", nii(np.zeros((34, 36, 40, 1, 3), np.int16))),
    "2 volumes": ("B17", 5, "4-D image with 2 volumes", nii(np.zeros((34, 36, 40, 2), np.int16), order=">")),
    "1-D": ("B19", 5, "1-D, 64", nii(np.zeros(64, np.int16))),
    "2-D": ("B19", 5, "2-D, 256×256", nii(np.zeros((256, 256), np.int16))),
    "one slice": ("B19", 5, "found: 256×256×1", nii(head((256, 256, 1)), IDENTITY)),
    "small": ("B19", 5, "found: 31×40×40", nii(head((31, 40, 40)), IDENTITY)),
    "slope": ("B21", 3, "scaling invalid", nii(scl_slope=np.inf)),
    "slope below": ("B21", 3, "scaling invalid", nii(scl_slope=-np.inf)),
    "intercept": ("B21", 3, "scaling invalid", nii(scl_slope=2, scl_inter=np.nan)),
    "NaN": ("B22", 5, "has no value in 100 % of the image", nii(NAN)),
    "Inf": ("B22", 5, "has no value in 100 % of the image", nii(np.full(SHAPE, np.inf, np.float32))),
    "-Inf": ("B22", 5, "has no value in 100 % of the image", nii(np.full(SHAPE, -np.inf, np.float32))),
    "zero": ("B23", 5, "no signal in image", nii(np.zeros(SHAPE, np.int16))),
    "constant": ("B23", 5, "found: 7.5 everywhere", nii(np.full(SHAPE, 7.5, np.float32))),
    "one value": ("B23", 5, "found: 1 everywhere", nii(np.ones(SHAPE, np.uint8))),
    "negative": ("B24", 5, "image is negative in", nii(with_signal(-9, 0.3))),
    "half negative": ("B24", 5, "image is negative in", nii(with_signal(-90, 0.5))),
    "turned negative": ("B24", 5, "image is negative in", nii(-0.1 * head(dtype=np.float32))),
}  # fmt: skip

# What is read, and what is noted of it.
READ = {
    "big-endian": ("MR", [], nii(order=">")),
    "NIfTI-2": ("MR", [], lambda d: put(d / "a.nii.gz", version=2, order=">")),
    "pair": ("MR", [], lambda d: put_pair(d / "a.hdr", head())),
    "pair by its .img": ("MR", [], lambda d: put_pair(d / "a.hdr", head()).with_suffix(".img")),
    "big-endian floats": ("MR", [], nii(head(dtype=np.float32), order=">")),
    "big-endian NIfTI-2 pair": ("MR", [], lambda d: put_pair(d / "a.hdr", head(), order=">", version=2)),
    "one volume of five dimensions": ("MR", [], nii(head().reshape(*SHAPE, 1, 1))),
    "one volume of seven dimensions": ("MR", [], nii(head().reshape(*SHAPE, 1, 1, 1, 1))),
    "one volume": ("MR", [], nii(head().reshape(*SHAPE, 1))),
    "thick slices": ("MR", ["B20"], nii(affine=np.diag([1, 1, 6.5, 1]))),
    "thick columns": ("MR", ["B20"], nii(affine=np.diag([6.1, 2, 2, 1]))),
    "thick rows": ("MR", ["B20"], nii(affine=np.diag([2, 9.0, 2, 1]))),
    "slope 0": ("MR", [], nii(scl_slope=0, scl_inter=np.inf)),
    "slope NaN": ("MR", [], nii(scl_slope=np.nan)),
    "some NaN": ("MR", ["B22"], nii(with_signal(np.nan, 0.1))),
    "slope 0 in NIfTI-2": ("MR", [], nii(scl_slope=0, version=2)),
    "some Inf": ("MR", ["B22"], nii(with_signal(np.inf, 0.02))),
    "few NaN": ("MR", ["B22"], nii(with_signal(np.nan, 0.002))),
    "one negative in a hundred": ("MR", ["B25"], nii(with_signal(-1, 0.01))),
    "two negatives in a hundred": ("MR", ["B25"], nii(with_signal(-2000, 0.02))),
    "saturated at 255": ("MR", ["B26"], nii(np.minimum(head(), 410))),
    "saturated floats": ("MR", ["B26"], nii(with_signal(1e4, 0.05))),
    "few negatives": ("MR", ["B25"], nii(with_signal(-9, 0.01))),
    "saturated": ("MR", ["B26"], nii(with_signal(4095, 0.2))),
    "CT": ("CT", [], nii(np.where(head() > 100, head() // 3, -1000).astype(np.int16))),
    "label map": ("label map", [], nii((head() // 100).astype(np.uint8))),
}  # fmt: skip
