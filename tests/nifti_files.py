"""NIfTI files made field by field, good or bad, without the checks of any library."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np

SHAPE = (34, 36, 40)
# Straight axes, dyadic numbers: exact in float32.
AFFINE = np.array([[-1.5, 0, 0, 30.25], [0, 2.0, 0, -41.5], [0, 0, 1.25, 7.0], [0, 0, 0, 1.0]])

PATIENT = b"Jane Doe"  # stands in every text field, and must be seen nowhere


def head(shape=SHAPE, dtype=np.int16, seed=0):
    """Something like a head: noisy tissue in dark air."""
    rng = np.random.default_rng(seed)
    grids = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    inside = sum(g**2 for g in grids) < 0.7
    return np.where(inside, rng.normal(400, 60, shape), rng.uniform(0, 9, shape)).astype(dtype)


def header(data, affine=AFFINE, *, version=1, order="<", single=True, q=True, s=True, **fields):
    """A header block; `fields` overwrite what they name, `pixdim_0` and the like one element."""
    kind = nib.Nifti1Header if version == 1 else nib.Nifti2Header
    block = kind(endianness=order, check=False)
    block.set_data_dtype(data.dtype.newbyteorder("="))
    block.set_data_shape(data.shape)
    block["pixdim"][1:4] = np.linalg.norm(affine[:3, :3], axis=0)
    block["xyzt_units"] = 2
    if q:
        block.set_qform(affine, code=1)
    if s:
        block.set_sform(affine, code=1)
    size = 348 if version == 1 else 540
    block["vox_offset"] = size + 4 if single else 0
    block["scl_slope"], block["scl_inter"] = 1, 0
    for text in {"descrip", "aux_file", "db_name", "intent_name"} & set(block.keys()):
        block[text] = PATIENT
    block["magic"] = (b"n+" if single else b"ni") + str(version).encode()
    for name, value in fields.items():
        field, _, element = name.rpartition("_")
        if element.isdigit():
            block[field][int(element)] = value
        else:
            block[name] = value
    return block.binaryblock


def content(data, affine=AFFINE, *, order="<", **options):
    """The bytes of a single file."""
    block = header(data, affine, order=order, **options)
    return block + b"\0" * 4 + data.astype(data.dtype.newbyteorder(order)).tobytes(order="F")


def put(path: Path, data=None, affine=AFFINE, **options) -> Path:
    """Write a single file, compressed if its name says so."""
    data = head() if data is None else data
    raw = content(data, affine, **options)
    path.write_bytes(gzip.compress(raw, 1, mtime=0) if path.name.endswith(".gz") else raw)
    return path


def put_pair(path: Path, data, affine=AFFINE, *, order="<", **options) -> Path:
    """Write a .hdr/.img pair; `path` names the .hdr."""
    path.write_bytes(header(data, affine, order=order, single=False, **options))
    path.with_suffix(".img").write_bytes(data.astype(data.dtype.newbyteorder(order)).tobytes(order="F"))
    return path
