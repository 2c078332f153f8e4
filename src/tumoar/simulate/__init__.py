"""Synthetic patients: images of any contrast from a label map and a tumor, with ground truth.

Signal is computed from relaxation times and sequence equations, so that contrasts are consistent. Tissue is
displaced and infiltrated by the tumor; then the scanner adds blur, bias field and noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.model.generative import Model
from tumoar.simulate.head import draw_head
from tumoar.simulate.patient import (
    EDEMA,
    REMOVED,
    Maps,
    Truth,
    displace,
    make_phantom,
    make_truth,
    tissue_map,
)
from tumoar.simulate.scanner import Acquisition, acquire
from tumoar.simulate.surgery import Surgery, open_skull, resect
from tumoar.simulate.tissue import default_tissues
from tumoar.simulate.tumor import draw_blob, draw_place, draw_shape
from tumoar.vocabulary.labels import LabelTable

__all__ = [
    "Acquisition",
    "Surgery",
    "Truth",
    "draw_blob",
    "draw_patient",
    "draw_place",
    "draw_shape",
    "simulate",
]


def draw_patient(
    model: Model, acquisitions: Sequence[Acquisition], seed: int
) -> tuple[dict[str, Image], Truth]:
    """Draw a patient from the model: head from its atlas, tumor from its shape priors; with ground truth."""
    rng_head, rng_tumor, rng_scan = np.random.default_rng(seed).spawn(3)
    label_map, grid = draw_head(model.atlas, rng_head)
    shape = draw_shape(model.shape_z, model.shape_y, rng_tumor)
    tumor = draw_place(shape, label_map, model.labels, rng_tumor)
    return simulate(label_map, grid, tumor, acquisitions, model.labels, rng_scan)


def simulate(
    label_map: Maps,
    grid: Grid,
    tumor: Maps | None,
    acquisitions: Sequence[Acquisition],
    labels: LabelTable,
    rng: np.random.Generator,
    *,
    source: npt.NDArray[np.integer] | None = None,
    push: float = 6.0,
    skull_stripped: bool = False,
    surgery: Surgery | None = None,
) -> tuple[dict[str, Image], Truth]:
    """Images of one patient by contrast, each on its own grid, and ground truth on the label map's grid.

    `label_map` has indices of the label table on a canonical grid of about 1 mm; `tumor`, on the same grid,
    is 0 none, 1 edema, 2 necrosis or non-enhancing, 3 enhancing. `source` has tissue codes of the background;
    without it, skull and scalp are added around the brain. `push` is the maximum displacement in mm. With
    `surgery`, the tumor is removed in that way after it has displaced the brain.
    """
    tumor = np.zeros_like(label_map) if tumor is None else tumor
    for name, volume in (("label map", label_map), ("tumor", tumor)):
        if volume.shape != grid.shape:
            raise ValueError(f"{name} must have the grid's shape {grid.shape}, got {volume.shape}")
    table = default_tissues()
    tissue = tissue_map(label_map, grid, labels, table, source)
    brain = np.isin(label_map, labels.indices[labels.in_brain])
    label_map, tissue = displace((label_map, tissue), (tumor > EDEMA) & brain, brain, grid, push)
    if surgery is not None:
        brain = np.isin(label_map, labels.indices[labels.in_brain])
        tumor = resect(tumor, brain, grid, surgery, rng)
        tissue = open_skull(tissue, np.isin(tumor, tuple(REMOVED)), brain, grid, table)
    truth = make_truth(label_map, tumor, grid, labels)
    scene = make_phantom(truth, tumor, tissue, labels, table, rng)
    # One random stream per image: adding a contrast does not change the others.
    streams = rng.spawn(len(acquisitions))
    images = {
        how.contrast: acquire(scene, how, table, stream, skull_stripped=skull_stripped)
        for how, stream in zip(acquisitions, streams)
    }
    return images, truth
