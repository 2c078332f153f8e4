"""Simulated patients of less than half size, skull-stripped, with a model to match: seconds to segment."""

from __future__ import annotations

import gzip
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from tumoar.geometry.image import Grid
from tumoar.io.models import default_model
from tumoar.io.nifti import write_nifti
from tumoar.io.store import atlas_section, load_sections, save_sections
from tumoar.simulate import Acquisition, draw_blob, draw_place, simulate
from tumoar.simulate.head import draw_head

SIZE = 0.4
CORE_ML = 60.0  # of a patient of full size
CONTRASTS = ("T1c", "FLAIR")
SETTINGS = """prior = "mrf"
[gem]
levels = [{ spacing = 2, smoothing = 1 }]
em_iterations = 3
outer_iterations = 1
deformation_steps = 1
[gibbs]
burn_in = 2
samples = 3
"""


def write_model(folder: Path) -> list[str]:
    """The model in the package, shrunk, and settings with few sweeps; returns the flags that use them."""
    folder.mkdir(parents=True, exist_ok=True)
    atlas = default_model().atlas
    shrunk = replace(atlas, nodes=np.ascontiguousarray(SIZE * atlas.nodes))
    shapes = load_sections(Path(str(files("tumoar").joinpath("data", "shape.npz"))))
    save_sections(folder / "model.npz", {**shapes, "atlas": atlas_section(shrunk)})
    (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    return ["--model", str(folder / "model.npz"), "--config", str(folder / "settings.toml")]


def write_patient(folder: Path, label: str, seed: int) -> None:
    """One patient of a BIDS dataset."""
    anat = folder / f"sub-{label}" / "anat"
    names = {"T1c": f"sub-{label}_ce-gadolinium_T1w.nii.gz", "FLAIR": f"sub-{label}_FLAIR.nii.gz"}
    if all((anat / name).exists() for name in names.values()):
        return
    anat.mkdir(parents=True, exist_ok=True)
    model = default_model()
    rng_head, rng_tumor, rng_scan = np.random.default_rng(seed).spawn(3)
    head, wide = draw_head(model.atlas, rng_head, spacing=1 / SIZE)
    affine = np.eye(4)
    affine[:3, 3] = SIZE * wide.affine[:3, 3]
    blob = draw_blob(rng_tumor, core_ml=CORE_ML * SIZE**3)
    tumor = draw_place(blob, head, model.labels, rng_tumor)
    scans = [Acquisition(name) for name in CONTRASTS]
    images, _ = simulate(
        head, Grid(head.shape, affine), tumor, scans, model.labels, rng_scan, push=2.0, skull_stripped=True
    )
    for name, image in images.items():
        write_nifti(anat / names[name], image.data, image.grid)


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flatten(path: Path) -> None:
    write_nifti(path, np.full((64, 64, 64), 7, np.float32), Grid((64, 64, 64), np.eye(4)))


def disorient(path: Path) -> None:
    """Neither form is set."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[252:256] = bytes(4)
    path.write_bytes(gzip.compress(bytes(content)))


def quantize(path: Path) -> None:
    rng = np.random.default_rng(0)
    write_nifti(path, rng.integers(0, 9, (64, 64, 64)).astype(np.uint8), Grid((64, 64, 64), np.eye(4)))


def rename(path: Path) -> None:
    """Neither a T1c nor a FLAIR is left."""
    for image in path.parent.glob("*.nii.gz"):
        image.unlink()
    (path.parent / f"{path.name.split('_')[0]}_T2w.nii.gz").write_bytes(b"")


FAULTS = {truncate: 3, empty: 3, flatten: 5, disorient: 4, quantize: 5, rename: 5}
"""What is done to an image, and the code that must come of it."""


def write_cohort(folder: Path, count: int) -> dict[str, int]:
    """A BIDS dataset; returns the expected code of every bad subject: one in ten."""
    bad = {}
    faults = list(FAULTS.items())
    for n in range(count):
        label = f"{n + 1:03}"
        name = f"sub-{label}"
        done = folder / ".spoiled" / name
        if not done.exists():
            write_patient(folder, label, seed=n)
        if n % 10 == 2:
            spoil, bad[name] = faults[n // 10 % len(faults)]
            if not done.exists():
                spoil(next((folder / name / "anat").glob("*_T1w.nii.gz")))
                done.parent.mkdir(exist_ok=True)
                done.touch()
    return bad
