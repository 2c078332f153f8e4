"""A head of 44 mm made of balls, with a tumor: small enough to be segmented whole in seconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case, Grid, Input
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
SIZE = 48
TUMOR_MM3 = {"core": 400.0, "edema": 1200.0}
MEANS = {
    "background": (1.0, 1.0),
    "GWM": (6.0, 5.5),
    "GGM": (5.6, 5.8),
    "CSF": (4.8, 4.6),
    "edema": (5.7, 6.5),
    "core": (6.9, 6.3),
}
"""Log intensities in T1c and FLAIR."""
SD = 0.08
TUMOR_CENTER = np.array([31.0, 25.0, 26.0])
CORE_RADIUS, TUMOR_RADIUS = 4.5, 8.0  # mm

Floats = npt.NDArray[np.floating]
Maps = npt.NDArray[np.uint8]


def radius(points: Floats, center: float | Floats = (SIZE - 1) / 2) -> Floats:
    """Distance of points (..., 3) from a center."""
    return np.asarray(np.linalg.norm(points - center, axis=-1))


def probabilities(points: Floats) -> npt.NDArray[np.float32]:
    """(..., K) label probabilities of the healthy head: white matter in gray in CSF in air."""
    r = radius(points)
    inside = {edge: 1 / (1 + np.exp((r - edge) / 0.8)) for edge in (11.0, 16.5, 20.0)}
    alpha = np.zeros((*r.shape, LABELS.K))
    alpha[..., LABELS.l("white matter")] = inside[11.0]
    alpha[..., LABELS.l("gray matter")] = inside[16.5] - inside[11.0]
    alpha[..., LABELS.l("CSF")] = inside[20.0] - inside[16.5]
    alpha[..., LABELS.l("background")] = 1 - inside[20.0]
    alpha[..., LABELS.l("unspecified brain tissue")] = 0.01 * inside[20.0]
    alpha = np.maximum(alpha, 0)
    return (alpha / alpha.sum(-1, keepdims=True)).astype(np.float32)


def truth(shift: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> tuple[Maps, Maps, Maps]:
    """l, z and y; the head moved by `shift`."""
    points = np.moveaxis(np.indices((SIZE,) * 3), 0, -1) - np.asarray(shift)
    l = probabilities(points).argmax(-1)
    r = radius(points, TUMOR_CENTER)
    in_brain = LABELS.in_brain[l]
    z, y = ((r < edge) & in_brain for edge in (TUMOR_RADIUS, CORE_RADIUS))
    return l.astype(np.uint8), z.astype(np.uint8), y.astype(np.uint8)


def case(
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0), seed: int = 0, bias: float = 0.0, tumor: bool = True
) -> Case:
    """T1c and FLAIR of the head, with noise."""
    rng = np.random.default_rng(seed)
    l, z, y = truth(shift)
    if not tumor:
        z, y = np.zeros_like(z), np.zeros_like(y)
    x = LABELS.x_of_l[l]
    x[z == 1], x[y == 1] = LABELS.edema, LABELS.core
    mean = np.zeros((LABELS.X, 2))
    for name, value in MEANS.items():
        mean[LABELS.x_named(name)] = value
    D = np.moveaxis(mean[x] + SD * rng.standard_normal((*l.shape, 2)), -1, 0)
    D[0] += bias * np.cos(np.pi * (np.arange(SIZE) + 0.5) / SIZE)[:, None, None]
    grid = Grid((SIZE,) * 3, np.eye(4))
    names = ("T1c", "FLAIR")
    inputs = tuple(Input(n, n, grid, "RAS", np.eye(4)) for n in names)
    contrasts = tuple(find_contrast(n) for n in names)
    return Case(D.astype(np.float32), contrasts, grid, "T1c", inputs, skull_stripped=False)
