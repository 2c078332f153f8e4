"""Every row of bad inputs, with its variants, as arguments of `tumoar segment`: what comes of each.

`Row.code` is the exit code; 0 and 13 are inputs that are taken, with `notes` that a reviewer is told. Rows
that rest on more than reading one image take seconds, and are `slow`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import reference_tetra
from bad_dicom import BAD, assign, edited, move
from bad_nifti import GOOD, READ, REFUSED, raw
from nifti_files import head, put
from pydicom import dcmread
from rt_files import enhanced, save, write_series
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Grid
from tumoar.io import store
from tumoar.model.atlas import Atlas
from tumoar.vocabulary.labels import default_labels

Arguments = list[object]


@dataclass(frozen=True)
class Row:
    """An input, and what it has to come to; `others` are ids that name the same thing."""

    id: str
    code: int
    text: str
    make: Callable[[Path], Arguments]
    notes: tuple[str, ...] = ()
    slow: bool = False
    others: tuple[str, ...] = ()


ROWS: dict[str, Row] = {}


def add(name: str, id: str, code: int, text: str, make, *, notes=(), slow=False, others=()) -> None:
    name = f"{id} {name}"
    if name in ROWS:
        raise ValueError(f"{name} appears twice")
    ROWS[name] = Row(id, code, text, make, tuple(notes), slow, others)


# ---- one NIfTI file ----------------------------------------------------------------------------------------

SPEAKS_OF_IMAGE = {"B22", "B23", "B24"}  # `inspect` knows no contrast
for name, (id, code, text, make) in REFUSED.items():
    expected = text if id not in SPEAKS_OF_IMAGE else ""
    expected = "" if name == "empty folder" else expected
    add(name, id, code, expected, lambda d, make=make: ["--t1c", make(d)])
add(
    "long gzip",
    "B5",
    3,
    "stream longer",
    lambda d: ["--t1c", raw(d / "a.nii.gz", gzip.compress(GOOD + b"x"))],
)
IDS = {"big": "B8", "NIfTI": "B9", "pair": "B9", "one volume": "B18", "slope": "B21"}
for name, (kind, notes, make) in READ.items():
    if kind == "MR":
        id = notes[0] if notes else next(v for k, v in IDS.items() if name.startswith(k))
        add(f"{name}, read", id, 0, "", lambda d, make=make: ["--t1c", make(d)], notes=notes)

LARGE = np.diag([4, 4, 4, 1.0])
CT = np.where(head() > 100, head() // 3, -1000).astype(np.int16)
for contrast in ("t1c", "t2", "flair"):
    add(
        f"CT as {contrast}",
        "B27",
        5,
        "looks like CT",
        lambda d, c=contrast: [f"--{c}", put(d / "a.nii", CT, LARGE)],
    )
for name, data in (("MR", head()), ("floats", head(dtype=np.float32)), ("dark MR", head() // 3)):
    add(
        f"{name} as CT",
        "B27",
        5,
        "does not look like CT",
        lambda d, data=data: ["--ct", put(d / "a.nii", data, LARGE)],
    )
for name, data in (
    ("labels", head() // 100),
    ("bytes", (head() // 60).astype(np.uint8)),
    ("floats", np.rint(head() / 90.0)),
):
    add(
        name,
        "B29",
        5,
        "looks like a label map",
        lambda d, data=data: ["--t1c", put(d / "a.nii", data, LARGE)],
    )
for value in (3071, 3500, 8000):
    clips = CT.copy()
    clips[10:13, 15:18, 18:21] = value
    add(
        f"metal of {value} HU",
        "B28",
        0,
        "",
        lambda d, clips=clips: ["--ct", put(d / "a.nii", clips, LARGE), "--no-tumor"],
        notes=["B28"],
    )


def stamped(seconds: float):
    """An image whose file was last changed at an odd time."""
    import os

    def make(d: Path) -> Arguments:
        path = put(d / "a.nii.gz")
        os.utime(path, (seconds, seconds))
        return ["--t1c", path]

    return make


for name, seconds in (("1901", -2.1e9), ("1970", 0), ("2446", 1.5e10)):
    add(f"file of {name}", "B62", 0, "", stamped(seconds))

# ---- one series --------------------------------------------------------------------------------------------

SERIES = head().astype(float)
WHERE = Grid(SERIES.shape, np.diag([-1.5, -1.5, 3.0, 1.0]))
WORDS = {"B45": "slice", "B46": "", "B16": "voxel size"}


def spoiled(spoil, **more):
    def make(d: Path) -> Arguments:
        spoil(write_series(d / "s", SERIES, WHERE, EchoTime="20", **more))
        return ["--t1c", d / "s"]

    return make


def tilted(mm: float):
    def change(data):
        data.ImagePositionPatient[1] = float(data.ImagePositionPatient[1]) + mm * float(data.InstanceNumber)

    return edited(change)


def cut(size: int):
    return lambda paths: paths[3].write_bytes(paths[3].read_bytes()[:size])


def deep(count: int):
    """Sequences within sequences, none of which ends."""
    item = b"\x08\x00\x40\x11SQ\x00\x00\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"

    def spoil(paths):
        whole = paths[0].read_bytes()
        meta = 132 + 12 + int.from_bytes(whole[140:144], "little")
        paths[0].write_bytes(whole[:meta] + item * count)

    return spoil


def preamble(content: bytes):
    def spoil(paths):
        for path in paths:
            path.write_bytes(content + path.read_bytes()[128:])

    return spoil


def headless(paths):
    for path in paths[:3]:
        path.write_bytes(path.read_bytes()[132:])


def implicit(paths):
    from pydicom.uid import ImplicitVRLittleEndian

    for path in paths:
        data = dcmread(path)
        data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
        data.save_as(path, implicit_vr=True, little_endian=True, enforce_file_format=True)


def compressed(paths):
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEG2000Lossless

    data = dcmread(paths[0])
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.PixelData = encapsulate([b"\xff\x4f\xff\x51" + bytes(60)])
    save(data, paths[0])


for name, (id, kind, text, spoil) in BAD.items():
    add(f"series, {name}", id, kind.exit_code, WORDS.get(id, text), spoiled(spoil))
for mm in (0.05, 0.3, 1.0):
    add(f"tilt of {mm} mm a slice", "B28", 4, "tilted", spoiled(tilted(mm)))
for field, value in (("PatientName", "Other^Name"), ("PatientBirthDate", "19000101"), ("PatientSex", "M")):
    add(
        f"series, other {field}",
        "B34",
        4,
        "different patients",
        spoiled(edited(assign(**{field: value}), {3})),
    )
for name, spoil in (
    ("two missing", edited(move([0, 0, 40.0]), range(1, 20))),
    ("first slice far", edited(move([0, 0, -7.0]), {40})),
):
    add(f"series, {name}", "B45", 4, "slice", spoiled(spoil))
for size in (0, 100, -100):
    add(f"slice cut at {size}", "B48" if size else "B2", 3, "", spoiled(cut(size)))
add("codec missing", "B48", 3, "", spoiled(compressed))
for name, change in (
    ("non-unit", [1.1, 0, 0, 0, 1, 0]),
    ("not orthogonal", [1, 0, 0, 0.2, 0.98, 0]),
    ("zero", [0] * 6),
):
    add(f"{name} directions", "B47", 4, "", spoiled(edited(assign(ImageOrientationPatient=change))))
for name, kind in (("mosaic", ["DERIVED", "PRIMARY", "MOSAIC"]), ("Mosaic", ["ORIGINAL", "Mosaic"])):
    add(f"{name} of another vendor", "B49", 5, "mosaic", spoiled(edited(assign(ImageType=kind))))
for count in (2_000, 20_000, 100_000):
    add(f"{count} sequences deep", "B52", 3, "not plausible", spoiled(deep(count)))
add("no preamble", "B48", 0, "", spoiled(headless))
add("implicit VR", "B48", 0, "", spoiled(implicit))
for name, content in (
    ("MZ", b"MZ" + b"\x90" * 126),
    ("ELF", b"\x7fELF" + bytes(124)),
    ("PDF", b"%PDF-1.7".ljust(128)),
):
    add(f"preamble of {name}", "B53", 0, "", spoiled(preamble(content)))
for name, text in (
    ("path", "../../etc/passwd"),
    ("NUL", "a\0b"),
    ("shell", "$(rm -rf /);`id`"),
    ("64 kB", "x" * 64_000),
):
    add(
        f"strings with {name}",
        "B51",
        0,
        "",
        spoiled(edited(assign(SeriesDescription=text[:60_000], StudyID=text[:16]))),
    )
for name, slopes in (
    ("rising", np.linspace(0.5, 2, 40)),
    ("two", [1.0, 2.0] * 20),
    ("tiny", np.full(40, 1e-2)),
):
    add(f"slopes {name}", "B50", 0, "", spoiled(lambda paths: None, slopes=np.asarray(slopes)))


def multi_frame(values, where):
    def make(d: Path) -> Arguments:
        (d / "s").mkdir()
        save(enhanced(values / 50, where), d / "s" / "a.dcm")
        return ["--t1c", d / "s"]

    return make


OBLIQUE = WHERE.affine.copy()
OBLIQUE[:3, :3] = Rotation.from_euler("x", 20, degrees=True).as_matrix() @ OBLIQUE[:3, :3]
TURNED = Grid(SERIES.shape, WHERE.affine[:, [0, 2, 1, 3]] * [1, 1, -1, 1])
for name, where in (("transverse", WHERE), ("oblique", Grid(SERIES.shape, OBLIQUE)), ("turned", TURNED)):
    add(f"enhanced, {name}", "B49", 0, "", multi_frame(SERIES, where))

# ---- model and settings ------------------------------------------------------------------------------------


def model_with(change):
    """An atlas file with something wrong in it."""

    def make(d: Path) -> Arguments:
        nodes, tetrahedra = reference_tetra.body_centered((3, 3, 3), 5.0)
        table = default_labels()
        alpha = np.full((len(nodes), table.K), 1 / table.K, np.float32)
        store.save_atlas(d / "m.npz", Atlas(nodes, tetrahedra, alpha, table, 0.2, {}))
        change(d / "m.npz")
        return ["--t1c", put(d / "a.nii.gz"), "--model", d / "m.npz"]

    return make


def damaged(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(bytes(whole))


def pickled(path: Path) -> None:
    np.savez(path, nodes=np.array([{}], object), allow_pickle=True)


for name, change in (
    ("damaged", damaged),
    ("pickle", pickled),
    ("cut", lambda p: p.write_bytes(p.read_bytes()[:-300])),
    ("atlas alone", lambda p: None),
    ("text", lambda p: p.write_bytes(b"Jane Doe")),
    ("missing", lambda p: p.unlink()),
):
    add(f"model, {name}", "B54", 6, "model file not usable", model_with(change))
for name, text in (
    ("misspelled", "[gibbs]\nburnin = 5\n"),
    ("no samples", "[gibbs]\nsamples = 0\n"),
    ("negative", "[gibbs]\nburn_in = -1\n"),
    ("w above 1", "w = 1.5\n"),
    ("not TOML", "a = = 3\n"),
    ("words", "[gibbs]\nsamples = 'Jane'\n"),
):
    add(
        f"settings, {name}",
        "B55",
        2,
        "",
        lambda d, text=text: ["--t1c", put(d / "a.nii.gz"), "--config", raw(d / "c.toml", text.encode())],
    )
