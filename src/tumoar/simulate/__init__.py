"""Synthetic patients: images of any contrast from a label map and a tumor, with their truth.

Signal comes from relaxation times and sequence equations, so that contrasts agree with each other. The order
is nature's: tissue, displaced and infiltrated by the tumor; then the scanner: blur, bias field, noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.model.generative import Model
from tumoar.simulate.head import draw_head
from tumoar.simulate.patient import EDEMA, Maps, Truth, displace, make_scene, make_truth, tissue_map
from tumoar.simulate.scanner import Acquisition, acquire
from tumoar.simulate.tissue import default_tissues
from tumoar.simulate.tumor import draw_blob, draw_place, draw_shape
from tumoar.vocabulary.labels import LabelTable

__all__ = ["Acquisition", "Truth", "draw_blob", "draw_patient", "draw_place", "draw_shape", "simulate"]


def draw_patient(
    model: Model, acquisitions: Sequence[Acquisition], seed: int
) -> tuple[dict[str, Image], Truth]:
    """A patient drawn from the model: head from its atlas, tumor from its shape priors; and the truth."""
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
) -> tuple[dict[str, Image], Truth]:
    """Images of one patient by contrast, each on its own grid, and the truth on the label map's grid.

    `label_map` has our indices on a canonical grid of about 1 mm; `tumor`, on the same grid, is 0 none, 1
    edema, 2 necrosis or non-enhancing, 3 enhancing. `source` gives codes for what the background holds; else
    skull and scalp are grown around the brain. `push` is the largest displacement by the core in mm.
    """
    tumor = np.zeros_like(label_map) if tumor is None else tumor
    for name, volume in (("label map", label_map), ("tumor", tumor)):
        if volume.shape != grid.shape:
            raise ValueError(f"{name} must have the grid's shape {grid.shape}, got {volume.shape}")
    table = default_tissues()
    tissue = tissue_map(label_map, grid, labels, table, source)
    brain = np.isin(label_map, labels.indices[labels.in_brain])
    label_map, tissue = displace((label_map, tissue), (tumor > EDEMA) & brain, brain, grid, push)
    truth = make_truth(label_map, tumor, grid, labels)
    scene = make_scene(truth, tumor, tissue, labels, table, rng)
    # One stream per image: adding a contrast does not change the others.
    streams = rng.spawn(len(acquisitions))
    images = {
        how.contrast: acquire(scene, how, table, stream, skull_stripped=skull_stripped)
        for how, stream in zip(acquisitions, streams)
    }
    return images, truth
