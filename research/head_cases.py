"""Cases made of prepared heads, for the experiments on simulated patients; no registration takes part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import nibabel as nib
import numpy as np

from tumoar.geometry.image import Case, Grid, Image, Input, is_valid, transform_intensities
from tumoar.geometry.resample import resample_valid
from tumoar.simulate.scanner import change_spacing
from tumoar.train.clinical import clinical_rules, relabel
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import prepare_head
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
PACKAGE = PROJECT / "src" / "tumoar"
LABELS = default_labels()
MADE_BY = (
    *("data/heads.toml", "data/labels.toml", "data/clinical.toml"),
    *("train/prepare.py", "train/eye_sockets.py", "train/clinical.py"),
)


def digest(script: str, parts: Iterable[str]) -> str:
    """Names what decides a result: the script, and files of the package, by pattern."""
    paths = {p for part in (*parts, "simulate/*.py", "data/tissues.toml") for p in PACKAGE.glob(part)}
    out = hashlib.sha256()
    for path in (Path(script), Path(__file__), *sorted(paths)):
        out.update(path.read_bytes())
    return out.hexdigest()[:12]


def read_head(name: str, cache: Path) -> tuple[np.ndarray, np.ndarray, Grid]:
    """Label map, source codes and grid, with organs as planners draw them.

    Preparing takes a while, so its result is kept.
    """
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / f"head_{name}.nii.gz"))
    grid = Grid(image.shape, image.affine)
    kept = cache / f"head_{name}_{digest(__file__, MADE_BY)}.npz"
    if not kept.exists():
        marked = np.asarray(image.dataobj).astype(np.int16)
        source = relabel(marked, grid, default_heads(), clinical_rules(), name=name).astype(np.int16)
        np.savez(
            kept, label_map=prepare_head(source, grid, default_heads(), LABELS, name=name), source=source
        )
    with np.load(kept) as both:
        return both["label_map"], both["source"], grid


def around_head(
    label_map: np.ndarray, source: np.ndarray, grid: Grid, margin: float, tallest: float = np.inf
) -> tuple[np.ndarray, np.ndarray, Grid]:
    """The box that holds the head, from its crown at most `tallest` mm down, with a margin in mm."""
    inside = source > 0
    box = []
    for axis in range(3):
        at = np.flatnonzero(inside.any(tuple(a for a in range(3) if a != axis)))
        pad, last = round(margin / grid.spacing[axis]), at[-1]
        first = max(at[0], last - tallest / grid.spacing[axis]) if axis == 2 else at[0]
        box.append(slice(max(int(first) - pad, 0), int(last) + pad + 1))
    label_map, source = label_map[tuple(box)], source[tuple(box)]
    return label_map, source, Grid(label_map.shape, shifted(grid.affine, grid.world([b.start for b in box])))


def shifted(affine: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """The same voxels from another corner."""
    out = affine.copy()
    out[:3, 3] = origin
    return out


def at_one_mm(images: dict[str, Image], field: Grid | None = None) -> tuple[np.ndarray, np.ndarray]:
    """D (N, X, Y, Z) and the affine of a case of images whose places are known, over the first or a field."""
    onto = change_spacing(field or next(iter(images.values())).grid, (1.0, 1.0, 1.0))
    D = []
    for name, image in images.items():
        contrast = find_contrast(name)
        values = image.data.astype(np.float32)
        values, valid = resample_valid(values, is_valid(values, contrast), image.grid, onto)
        D.append(np.where(valid, transform_intensities(np.where(valid, values, 1), contrast), np.nan))
    return np.stack(D).astype(np.float32), onto.affine


def bare_case(D: np.ndarray, affine: np.ndarray, contrasts: tuple[str, ...], stripped: bool) -> Case:
    """A case of values alone."""
    grid = Grid(D.shape[1:], affine)
    given = tuple(Input(name, "", grid, "RAS", np.eye(4)) for name in contrasts)
    return Case(D, tuple(find_contrast(n) for n in contrasts), grid, contrasts[0], given, stripped)
