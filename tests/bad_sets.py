"""Bad inputs that rest on several images, on the head they show, or on where the result is to go."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from bad_inputs import LARGE, ROWS, Arguments, add
from bad_nifti import raw
from nifti_files import head, put
from rt_files import write_series
from synthetic_heads import head_grid, synthetic_head

from tumoar.geometry.image import Grid, Image
from tumoar.io.nifti import write_nifti

__all__ = ["ROWS"]

# ---- several images ----------------------------------------------------------------------------------------


def pair(change, more=(), seed=0):
    """A T1c and a FLAIR of the same head, the second changed."""

    def make(d: Path) -> Arguments:
        one, two = synthetic_head("T1c", seed=seed), change(synthetic_head("FLAIR", seed=seed))
        write_nifti(d / "T1c.nii.gz", one.data, one.grid)
        write_nifti(d / "FLAIR.nii.gz", np.asarray(two.data), two.grid)
        return ["--t1c", d / "T1c.nii.gz", "--flair", d / "FLAIR.nii.gz", *more]

    return make


def shifted(x: float, y: float, z: float):
    def change(image: Image) -> Image:
        affine = image.grid.affine.copy()
        affine[:3, 3] += x, y, z
        return Image(image.data, Grid(image.grid.shape, affine))

    return change


def mirrored(image: Image) -> Image:
    return Image(image.data[::-1], image.grid)


def _write_head(folder: Path, image: Image, **options) -> None:
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    flip[:2, 3] = np.array(image.data.shape[:2]) - 1
    grid = Grid(image.data.shape, image.grid.affine @ flip)
    write_series(folder, np.asarray(image.data)[::-1, ::-1] * 5.0, grid, **options)


def series_pair(first: dict, second: dict, more=()):
    def make(d: Path) -> Arguments:
        for name, options in (("T1c", first), ("FLAIR", second)):
            _write_head(d / name, synthetic_head(name), **options)
        return ["--t1c", d / "T1c", "--flair", d / "FLAIR", *more]

    return make


for name, value in (
    ("PatientID", "x"),
    ("PatientName", "Other^Name"),
    ("PatientBirthDate", "19000101"),
    ("PatientSex", "M"),
):
    add(
        f"two images, other {name}", "B34", 4, "different patients", series_pair({}, {name: value}), slow=True
    )
for name, more in (
    ("", ()),
    (" and UIDs alike", ({"study": "1.2.5"},)),
    (" of one day", ({"StudyDate": "20240301"},)),
):
    options = more[0] if more else {}
    add(
        f"frames differ{name}",
        "B33",
        4,
        "different frames",
        series_pair({"frame": "1.2.1"}, {"frame": "1.2.2", **options}, ["--no-register"]),
        slow=True,
    )
for name, shift in (("right", (8, 0, 0)), ("back", (0, -12, 0)), ("up", (0, 3, 9))):
    add(
        f"FLAIR moved {name}",
        "B35",
        4,
        "is misaligned with",
        pair(shifted(*shift), more=["--no-register"]),
        slow=True,
    )
for seed in range(3):
    add(f"FLAIR mirrored, {seed}", "B36", 4, "mirrored", pair(mirrored, seed=seed), slow=True)
for name, make in (
    ("file", lambda d: [put(d / "a.nii.gz", head(), LARGE)] * 2),
    ("copy", lambda d: [put(d / "a.nii.gz", head(), LARGE), put(d / "b.nii", head(), LARGE)]),
    ("scaled copy", lambda d: [put(d / "a.nii", head(), LARGE), put(d / "b.nii", head() * 3, LARGE)]),
):
    add(
        f"same {name}",
        "B30",
        5,
        "are the same image",
        lambda d, make=make: [part for pair in zip(("--t2", "--flair"), make(d)) for part in pair],
        slow=True,
    )


def alone(contrast: str, *more: str, stripped: bool = False):
    def make(d: Path) -> Arguments:
        image = synthetic_head(contrast, stripped=stripped)
        write_nifti(d / "a.nii.gz", np.asarray(image.data), image.grid)
        return [f"--{contrast.lower()}", d / "a.nii.gz", *more]

    return make


for contrast in ("T1", "CT", "T2"):
    add(f"{contrast} alone", "B41", 5, "cannot identify tumor", alone(contrast))
for contrast in ("T1c", "T1", "FLAIR"):
    add(f"stripped {contrast} as whole head", "B40", 5, "", alone(contrast, "--whole-head", stripped=True))


def junk(kind: str):
    """What is no head at all."""

    def make(d: Path) -> Arguments:
        rng = np.random.default_rng(0)
        shape = (90, 100, 90)
        x, y, z = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
        noise = rng.normal(1, 0.03, shape)
        values = {
            "noise": rng.uniform(1, 900, shape),
            "cylinder": np.where(x**2 + y**2 < 0.5, 400, 4) * noise,
            "box": np.where((abs(x) < 0.6) & (abs(y) < 0.7) & (abs(z) < 0.6), 300, 3) * noise,
        }[kind]
        write_nifti(d / "a.nii.gz", values.astype(np.float32), Grid(shape, np.diag([2.0, 2.0, 2.0, 1.0])))
        return ["--t1c", d / "a.nii.gz"]

    return make


for kind in ("noise", "cylinder", "box"):
    add(f"no head but {kind}", "B38", 7, "no head found", junk(kind), slow=True, others=("B39",))


def sized(scale: float):
    """A head whose header says that it is of another size."""

    def make(d: Path) -> Arguments:
        image = synthetic_head("T1c")
        affine = image.grid.affine @ np.diag([scale, scale, scale, 1.0])
        write_nifti(d / "a.nii.gz", np.asarray(image.data), Grid(image.grid.shape, affine))
        return ["--t1c", d / "a.nii.gz"]

    return make


for scale in (0.8, 1.2, 4.5):
    add(f"a head of {scale * 72:.0f} mm", "B39", 7, "no head found", sized(scale), slow=True, others=("B38",))


@cache
def simulated() -> Image:
    """The T1c of a patient drawn from the atlas that is shipped."""
    from tumoar.io.models import default_model
    from tumoar.simulate import Acquisition, simulate
    from tumoar.simulate.head import draw_head

    model, rng = default_model(), np.random.default_rng(5)
    label_map, grid = draw_head(model.atlas, rng)
    scans = [Acquisition("T1c", (1.0, 1.0, 1.0))]
    return simulate(label_map, grid, None, scans, model.labels, rng)[0]["T1c"]


def cut_off(axis: int, share: float):
    """A head of which the field of view leaves out a share, on the upper or, if negative, the lower side."""

    def make(d: Path) -> Arguments:
        whole = simulated()
        data = np.moveaxis(np.asarray(whole.data), axis, 0)
        count = round(len(data) * abs(share))
        kept = data[: len(data) - count] if share > 0 else data[count:]
        affine = whole.grid.affine.copy()
        affine[:3, 3] = whole.grid.world(np.eye(3)[axis] * (0 if share > 0 else count))
        data = np.moveaxis(kept, 0, axis)
        write_nifti(d / "a.nii.gz", np.ascontiguousarray(data), Grid(data.shape, affine))
        return ["--t1c", d / "a.nii.gz"]

    return make


for name, axis, share in (("above", 2, 0.35), ("left", 0, -0.4), ("behind", 1, -0.35)):
    others = ("B38", "B39")
    add(f"brain cut {name}", "B37", 7, "no head found", cut_off(axis, share), slow=True, others=others)


def on_other_grid(spacing, **options):
    """The FLAIR on another grid than the T1c, in the same place."""

    def make(d: Path) -> Arguments:
        one, two = synthetic_head("T1c"), synthetic_head("FLAIR", head_grid(spacing))
        if not options:
            write_nifti(d / "T1c.nii.gz", one.data, one.grid)
            write_nifti(d / "FLAIR.nii.gz", two.data, two.grid)
            return ["--t1c", d / "T1c.nii.gz", "--flair", d / "FLAIR.nii.gz"]
        for name, image in (("T1c", one), ("FLAIR", two)):
            _write_head(d / name, image, **options)
        return ["--t1c", d / "T1c", "--flair", d / "FLAIR"]

    return make


for spacing in ((1.5, 1.5, 1.5), (1.0, 1.0, 2.0), (0.9, 1.1, 2.2)):
    size, slow = "×".join(map(str, spacing)), spacing != (1.5, 1.5, 1.5)
    add(f"one frame, FLAIR of {size} mm", "B31", 0, "", on_other_grid(spacing, frame="1.2.1"), slow=slow)
    add(f"frame not known, FLAIR of {size} mm", "B32", 0, "", on_other_grid(spacing), slow=slow)


def occupied(content: bytes):
    """An output that is a file, or lies below one."""

    def make(d: Path) -> Arguments:
        return ["--t1c", put(d / "a.nii.gz"), "-o", raw(d / "file", content) / "out"]

    return make


def nowhere(path: str):
    return lambda d: ["--t1c", put(d / "a.nii.gz"), "-o", path]


add("below a file", "B58", 9, "cannot write", occupied(b"x"))
add("below /proc", "B58", 9, "cannot write", nowhere("/proc/1/tumoar/out"))
add("below a device", "B58", 9, "cannot write", nowhere("/dev/null/out"))
add("the root", "output", 2, "a folder of its own", nowhere("/"))
add("the current folder", "output", 2, "a folder of its own", nowhere("."))
add("a name too long", "output", 2, "too long", nowhere("/tmp/" + "a" * 300))


def other_content(fill):
    def make(d: Path) -> Arguments:
        fill(d / "there")
        return ["--t1c", put(d / "a.nii.gz"), "-o", d / "there"]

    return make


add(
    "a folder of something else",
    "B57",
    12,
    "holds something else",
    other_content(lambda p: p.mkdir() or (p / "notes.txt").write_text("Jane Doe")),
)
add(
    "a manifest of nothing",
    "B57",
    12,
    "",
    other_content(lambda p: p.mkdir() or (p / "run.json").write_text('{"files": {}}')),
)
add("a file", "B57", 12, "", other_content(lambda p: p.write_text("Jane Doe")))
