"""A head from ellipsoids and tubes with all trained structures, at any voxel size: anatomy for tests."""

from __future__ import annotations

import numpy as np

from tumoar.geometry.image import Grid
from tumoar.vocabulary.labels import LabelTable, default_labels

FIELD = np.array([176.0, 216.0, 200.0])
"""mm; the origin of the world is 8 mm behind and 16 mm below the field's center."""


def analytic_head(spacing: float = 2.0, labels: LabelTable | None = None) -> tuple[np.ndarray, Grid]:
    """Label map with our indices and its canonical grid, in mm from the center of the brain."""
    labels = labels or default_labels()
    shape = tuple(int(n) for n in np.ceil(FIELD / spacing))
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:3, 3] = -(np.array(shape) - 1) / 2 * spacing + [0, 8, -16]
    grid = Grid(shape, affine)
    where = grid.world(np.moveaxis(np.indices(shape), 0, -1))
    out = np.zeros(shape, np.uint8)

    def draw(name: str, mask: np.ndarray) -> None:
        out[mask] = labels.indices[labels.l(name)]

    def ball(center, axes):
        return (((where - center) / np.asarray(axes)) ** 2).sum(-1) < 1

    def tube(start, end, radius):
        start, way = np.asarray(start, float), np.subtract(end, start)
        t = np.clip((where - start) @ way / (way @ way), 0, 1)
        return ((where - start - t[..., None] * way) ** 2).sum(-1) < radius**2

    sides = (("left", -1), ("right", 1))
    for _, side in sides:
        draw("eye socket fat", ball([side * 30, 57, -38], [17, 26, 16]))
    draw(
        "CSF",
        ball([0, 0, 0], [68, 85, 62]) | ball([0, -48, -44], [50, 32, 27]) | ball([0, 0, -34], [30, 34, 16]),
    )
    draw("gray matter", ball([0, 0, 0], [64, 81, 58]) | ball([0, -48, -46], [46, 28, 22]))
    draw("white matter", ball([0, 0, 0], [54, 71, 48]) | ball([0, -46, -46], [30, 17, 11]))
    for _, side in sides:
        draw("CSF", ball([side * 10, 5, 8], [6, 24, 10]))
        draw("deep gray matter", ball([side * 20, 2, -6], [9, 16, 10]))
    draw("brainstem", tube([0, -14, -24], [0, -26, -84], 12))
    draw("optic chiasm", ball([0, 20, -40], [9, 5, 4]))
    for name, side in sides:
        draw(f"{name} hippocampus", ball([side * 26, -12, -24], [6, 19, 6]))
        eye, apex = np.array([side * 32, 72, -38]), np.array([side * 14, 32, -38])
        for dx, dz in ((9, 0), (-9, 0), (0, 9), (0, -9)):
            draw("eye socket muscles", tube(apex, eye + np.array([dx, -2, dz]), 2.4))
        draw(f"{name} optic nerve", tube([side * 6, 22, -40], eye - [0, 10, 0], 2.8))
        draw(f"{name} eye tissue", ball(eye, [12.5] * 3))
        draw(f"{name} eye fluid", ball(eye, [10.5] * 3))
    return out, grid
