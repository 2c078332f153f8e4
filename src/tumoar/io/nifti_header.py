"""Check NIfTI headers from their raw bytes: a header is unambiguous or it is refused.

Only the layout of the fields is taken from nibabel. nibabel repairs some headers (a zero voxel size becomes
1 mm, a missing form a flipped default), so that a wrong size or side would pass silently. Every field that
determines the position of a voxel is therefore checked here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from nibabel import nifti1, nifti2
from nibabel.quaternions import quat2mat

from tumoar.vocabulary.errors import ChannelError, GeometryError, TumoarError, UnreadableFileError

Form = Literal["s", "q"]
Matrix = npt.NDArray[np.float64]

NIFTI1, NIFTI2 = nifti1.header_dtype, nifti2.header_dtype
SCALARS = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8",
}  # fmt: skip
LAYOUTS = {
    # (sizeof_hdr, magic): is the data in the same file?
    (348, b"n+1\0"): True,
    (348, b"ni1\0"): False,
    (540, b"n+2\0\r\n\x1a\n"): True,
    (540, b"ni2\0\r\n\x1a\n"): False,
}

SPACING = (0.2, 10.0)  # mm; outside it the unit of length is in doubt
FARTHEST = 1e5  # mm from the origin; beyond it float32 positions no longer resolve a voxel
MAX_FORM_DISTANCE = 0.1  # mm between the two forms at any corner
MAX_SHEAR = 1e-3  # cosine between two axes
MAX_SPACING_ERROR = 0.01  # relative, between affine and pixdim
QUATERNION_ROUNDING = 4e-7  # of b² + c² + d², stored as float32

COPY_AGAIN = "copy or export the file again"
EXPORT_AGAIN = "export the image again from the original scan"
USE_SFORM = "if the sform is right, --use-form s"


@dataclass(frozen=True)
class Header:
    """The fields of an accepted header that are used; values are stored * slope + inter."""

    shape: tuple[int, int, int]
    affine: Matrix
    dtype: np.dtype[np.generic]
    offset: int
    slope: float
    inter: float
    in_same_file: bool

    @property
    def is_scaled(self) -> bool:
        """Whether stored values have to be scaled."""
        return (self.slope, self.inter) != (1.0, 0.0)

    @property
    def data_bytes(self) -> int:
        """Bytes of voxel data, exact for any claimed size."""
        return math.prod(self.shape) * self.dtype.itemsize


def header_size(start: bytes, name: str) -> int:
    """348 or 540 from the first four bytes, in either byte order; anything else is not NIfTI."""
    for order in ("<", ">"):
        size = int(np.frombuffer(start[:4], order + "i4")[0]) if len(start) >= 4 else 0
        if size in (NIFTI1.itemsize, NIFTI2.itemsize):
            return size
    raise _not_scalar(name, "no NIfTI header")


def parse_header(raw: bytes, name: str, use_form: Form | None = None) -> Header:
    """Check a raw header; `name` appears in refusals, `use_form` selects a form if the two differ."""
    size = header_size(raw, name)
    if len(raw) < size:
        raise UnreadableFileError(
            "B3", "file ends inside its header", file=name, found=f"{len(raw)} of {size} bytes", do=COPY_AGAIN
        )
    order: Literal["<", ">"] = "<" if int.from_bytes(raw[:4], "little") == size else ">"
    layout = NIFTI1 if size == NIFTI1.itemsize else NIFTI2
    fields = np.frombuffer(raw[:size], layout.newbyteorder(order))[0]
    magic = raw[344:348] if layout is NIFTI1 else raw[4:12]
    if (size, magic) not in LAYOUTS:
        if name.removesuffix(".gz").endswith((".hdr", ".img")):
            raise GeometryError(
                "B10",
                "Analyze has no left/right information",
                file=name,
                do="convert the original scan to NIfTI",
            )
        raise _not_scalar(name, "no NIfTI magic")
    in_same_file = LAYOUTS[size, magic]
    slope, inter = _scaling(fields, name)
    dtype = _data_type(fields, order, name)
    shape = _shape(fields, name)
    return Header(
        shape=shape,
        affine=_affine(fields, shape, name, use_form),
        dtype=dtype,
        offset=_offset(fields, size + 4 if in_same_file else 0, name),
        slope=slope,
        inter=inter,
        in_same_file=in_same_file,
    )


# ---- values ------------------------------------------------------------------------------------------------


def _data_type(fields: np.void, order: str, name: str) -> np.dtype[np.generic]:
    code, bits = int(fields["datatype"]), int(fields["bitpix"])
    if code not in SCALARS:
        raise _not_scalar(name, f"data type {code}")
    dtype = np.dtype(order + SCALARS[code])
    if bits != dtype.itemsize * 8:
        raise _not_scalar(name, f"data type {code} with {bits} bits per voxel")
    return dtype


def _shape(fields: np.void, name: str) -> tuple[int, int, int]:
    count = int(fields["dim"][0])
    if not 1 <= count <= 7:
        raise _not_scalar(name, f"{count} dimensions")
    sizes = [int(n) for n in fields["dim"][1 : count + 1]]
    if min(sizes) < 1:
        raise _not_scalar(name, f"dimensions {_by(sizes)}")
    if count < 3:
        raise ChannelError(
            "B19", "too small", file=name, found=f"{count}-D, {_by(sizes)}", do="give a 3-D image"
        )
    volumes = math.prod(sizes[3:])
    if volumes > 1:
        raise ChannelError(
            "B17",
            f"{count}-D image with {volumes} volumes",
            file=name,
            found=_by(sizes),
            do="give one volume",
        )
    return sizes[0], sizes[1], sizes[2]


def _scaling(fields: np.void, name: str) -> tuple[float, float]:
    """Slope and intercept; by the standard, 0 and NaN mean unscaled."""
    slope, inter = float(fields["scl_slope"]), float(fields["scl_inter"])
    if slope == 0 or math.isnan(slope):
        return 1.0, 0.0
    if not math.isfinite(slope) or not math.isfinite(inter):
        raise UnreadableFileError(
            "B21",
            "scaling invalid",
            file=name,
            found=f"slope {slope:g}, intercept {inter:g}",
            do=EXPORT_AGAIN,
        )
    return slope, inter


def _offset(fields: np.void, least: int, name: str) -> int:
    offset = float(fields["vox_offset"])
    if not (math.isfinite(offset) and offset.is_integer() and offset >= least):
        raise _not_scalar(name, f"data offset {offset:g}")
    return int(offset)


# ---- geometry ----------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # overflows to inf or NaN fail the comparisons below
def _affine(fields: np.void, shape: tuple[int, int, int], name: str, use_form: Form | None) -> Matrix:
    """4x4 RAS affine of the form that is set, or of both if they agree."""
    pixdim = np.array(fields["pixdim"][1:4], np.float64)
    unit = int(fields["xyzt_units"]) & 7
    if unit not in (0, 2):
        found = {1: "meters", 3: "microns"}.get(unit, f"unit code {unit}")
        raise GeometryError("B16", "voxel size not in mm; units?", file=name, found=found, do=EXPORT_AGAIN)
    if not (np.isfinite(pixdim).all() and (pixdim > 0).all()):
        raise _unusable(name, "voxel size not usable", _by(pixdim.tolist()))
    forms = _forms_set(fields, name, use_form)
    sform = _sform(fields, name) if "s" in forms else None
    qform = _qform(fields, pixdim, name, near=sform) if "q" in forms else None
    if sform is not None and qform is not None:
        _require_agreement(sform, qform, shape, name)
    affine = sform if sform is not None else cast(Matrix, qform)
    _require_plausible(affine, pixdim, name)
    return affine


def _forms_set(fields: np.void, name: str, use_form: Form | None) -> list[Form]:
    codes: dict[Form, int] = {"s": int(fields["sform_code"]), "q": int(fields["qform_code"])}
    for form, code in codes.items():
        if not 0 <= code <= 5:
            raise GeometryError(
                "B11", "orientation unknown", file=name, found=f"{form}form_code {code}", do=EXPORT_AGAIN
            )
    forms = [form for form, code in codes.items() if code > 0 and use_form in (None, form)]
    if not forms:
        found = "neither sform nor qform is set" if use_form is None else f"{use_form}form is not set"
        raise GeometryError(
            "B11", "orientation unknown", file=name, found=found, do="set a form from the original scan"
        )
    return forms


def _sform(fields: np.void, name: str) -> Matrix:
    rows = [fields["srow_x"], fields["srow_y"], fields["srow_z"], (0, 0, 0, 1)]
    return _finite(np.array(rows, np.float64), name)


def _qform(fields: np.void, pixdim: Matrix, name: str, near: Matrix | None = None) -> Matrix:
    """Affine of the qform; for half turns rounding hides the small real part a, which `near` then decides."""
    b, c, d = (float(fields[f"quatern_{part}"]) for part in "bcd")
    square = 1 - b * b - c * c - d * d
    if not square >= -QUATERNION_ROUNDING:
        raise _unusable(
            name, "rotation of the qform not usable", f"b² + c² + d² is {1 - square:g}", USE_SFORM
        )
    sign = float(fields["pixdim"][0])
    if sign not in (1.0, -1.0):
        # The standard reads 0 as 1, but 0 does not determine the side, which is never guessed.
        raise _unusable(
            name, "side of the qform not usable", f"pixdim[0] is {sign:g}, not 1 or -1", USE_SFORM
        )
    sizes = pixdim * [1, 1, sign]
    if near is None:
        a = math.sqrt(square) if square > QUATERNION_ROUNDING else 0.0
    else:
        wanted = math.sqrt(max(0.0, 1 + float(np.trace(near[:3, :3] / sizes)))) / 2
        least, most = (math.sqrt(max(0.0, square + e)) for e in (-QUATERNION_ROUNDING, QUATERNION_ROUNDING))
        a = min(max(wanted, least), most)
    affine = np.eye(4)
    affine[:3, :3] = quat2mat([a, b, c, d]) * sizes
    affine[:3, 3] = [fields[f"qoffset_{axis}"] for axis in "xyz"]
    return _finite(affine, name)


def _finite(affine: Matrix, name: str) -> Matrix:
    offset = affine[:3, 3]
    if not np.isfinite(affine).all() or np.abs(offset).max() > FARTHEST:
        raise _unusable(name, "position not usable", f"offset {', '.join(f'{x:g}' for x in offset)} mm")
    return affine


def _require_agreement(s: Matrix, q: Matrix, shape: tuple[int, int, int], name: str) -> None:
    corners = np.array([(*corner, 1) for corner in np.ndindex(2, 2, 2)]) * [*(np.array(shape) - 1), 1]
    distance = float(np.linalg.norm(corners @ (s - q).T, axis=1).max())
    if not distance <= MAX_FORM_DISTANCE:
        raise GeometryError(
            "B12",
            "two different positions in one file",
            file=name,
            found=f"sform and qform differ by up to {distance:.3g} mm",
            do="choose one with --use-form s or --use-form q",
        )


def _require_plausible(affine: Matrix, pixdim: Matrix, name: str) -> None:
    axes = affine[:3, :3]
    spacing = np.linalg.norm(axes, axis=0)
    if not (spacing > 0).all():
        raise GeometryError(
            "B14", "axes not independent", file=name, found="an axis of length 0", do=EXPORT_AGAIN
        )
    if not SPACING[0] <= spacing.min() <= spacing.max() <= SPACING[1]:
        raise GeometryError(
            "B16",
            f"voxel size outside {SPACING[0]:g}–{SPACING[1]:g} mm; units?",
            file=name,
            found=f"{_by(spacing.tolist())} mm",
            do=EXPORT_AGAIN,
        )
    cosines = np.abs((axes.T @ axes) / np.outer(spacing, spacing) - np.eye(3)).max()
    if not cosines <= MAX_SHEAR:
        raise GeometryError(
            "B14",
            "axes not orthogonal",
            file=name,
            found=f"shear {cosines:.3g}",
            do="resample to orthogonal axes",
        )
    worst = int(np.argmax(np.abs(spacing / pixdim - 1)))
    if not abs(spacing[worst] / pixdim[worst] - 1) <= MAX_SPACING_ERROR:
        raise GeometryError(
            "B15",
            "spacing contradiction",
            file=name,
            found=f"{spacing[worst]:.3g} vs {pixdim[worst]:.3g} mm",
            do=EXPORT_AGAIN,
        )


# ---- sentences ---------------------------------------------------------------------------------------------


def _by(numbers: list[int] | list[float]) -> str:
    return "×".join(f"{n:g}" if isinstance(n, float) else str(n) for n in numbers)


def _not_scalar(name: str, found: str) -> TumoarError:
    return UnreadableFileError(
        "B7", "not a scalar NIfTI image", file=name, found=found, do="give a NIfTI image"
    )


def _unusable(name: str, what: str, found: str, do: str = EXPORT_AGAIN) -> TumoarError:
    return GeometryError("B13", what, file=name, found=found, do=do)
