"""A head with one organ more than the label table in the package has: the table, label maps, a case."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from heads import analytic_head

from tumoar.geometry.image import Case, Grid, Input
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import LabelTable

ROWS = """
[[gmm]]
name = "pituitary"
components = 1

[[structure]]
name = "pituitary gland"
index = 20
in_brain = false
gmm = "pituitary"
color = "#00a0a0"

[[organ]]
name = "Pituitary"
structures = ["pituitary gland"]
kind = "ORGAN"
"""
"""What someone who adds an organ appends to a copy of data/labels.toml."""

CENTER, RADIUS = np.array([0.0, 34.0, -52.0]), 9.0
"""mm; larger than the gland is, so that a coarse mesh can have it."""
TUMOR = np.array([30.0, -20.0, 30.0])
# log intensities in T1c and FLAIR
MEANS = {
    "background": (2.0, 2.0), "GWM": (6.0, 5.5), "GGM": (5.6, 5.8), "CSF": (4.8, 4.6),
    "deep gray": (5.8, 5.7), "GNE": (5.7, 5.6), "chiasm": (5.9, 5.6), "eye fluid": (4.6, 5.0),
    "fat": (6.8, 6.4), "muscle": (5.4, 5.2), "pituitary": (6.8, 5.6), "edema": (5.7, 6.5), "core": (6.9, 6.3),
}  # fmt: skip


def table_text() -> str:
    """The table in the package with the rows of one more organ."""
    return files("tumoar").joinpath("data/labels.toml").read_text(encoding="utf-8") + ROWS


def label_map(labels: LabelTable, shrink: float = 2.0) -> tuple[np.ndarray, Grid]:
    """A head with the organ in it, smaller than life, on voxels of 1 mm."""
    out, grid = analytic_head(shrink, labels)
    where = grid.world(np.moveaxis(np.indices(out.shape), 0, -1))
    out[((where - CENTER) ** 2).sum(-1) < RADIUS**2] = labels.indices[labels.l("pituitary gland")]
    affine = grid.affine.copy()
    affine[:3] /= shrink
    return out, Grid(out.shape, affine)


def case(labels: LabelTable, names=("T1c", "FLAIR"), seed: int = 0) -> tuple[Case, np.ndarray]:
    """Images of the head with a tumor in it, and its label map, tumor over anatomy."""
    rng = np.random.default_rng(seed)
    found, grid = label_map(labels)
    l = np.zeros(256, int)
    l[labels.indices] = np.arange(labels.K)
    where = grid.world(np.moveaxis(np.indices(found.shape), 0, -1))
    away = np.linalg.norm(where - TUMOR / 2, axis=-1)
    x = labels.x_of_l[l[found]]
    inside = labels.in_brain[l[found]]
    x[inside & (away < 9)], x[inside & (away < 5)] = labels.edema, labels.core
    index = {t.name: t.index for t in labels.tumor}
    truth = np.where(x == labels.edema, index["edema"], np.where(x == labels.core, index["core"], found))
    mean = np.zeros((labels.X, len(names)))
    for name, value in MEANS.items():
        mean[labels.x_named(name)] = value
    D = np.moveaxis(mean[x] + 0.08 * rng.standard_normal((*x.shape, len(names))), -1, 0)
    inputs = tuple(Input(n, n, grid, "RAS", np.eye(4)) for n in names)
    contrasts = tuple(find_contrast(n) for n in names)
    made = Case(D.astype(np.float32), contrasts, grid, names[0], inputs, skull_stripped=False)
    return made, truth.astype(np.uint8)
