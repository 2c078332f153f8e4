"""Scans of heads from label maps with FreeSurfer-like codes; shares nothing with the model.

Tissues, sequences, anatomy, tumor and scanner are other ones than those of `tumoar.simulate`, and no atlas,
mixture or label table takes part. The organs of a head, by which a segmentation is judged, are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid, Image
from tumoar.geometry.solids import Globe, Mask, Tube
from tumoar.simulate.independent.head import Head, draw_finer
from tumoar.simulate.independent.scan import Scan, acquire, motion
from tumoar.simulate.independent.sequences import relaxation_table
from tumoar.simulate.independent.tumor import Growth, choose_place, displacement, grow, no_growth

__all__ = ["Anatomy", "Growth", "Head", "Patient", "Scan", "draw_patient", "motion", "scan"]

BRAIN = (
    *("white matter", "cortex", "cerebellar cortex", "cerebellar white matter", "thalamus", "caudate"),
    *("putamen", "pallidum", "hippocampus", "amygdala", "ventral diencephalon", "brainstem", "CSF"),
)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A head to be scanned: label map at 1 mm with source codes, organs by name, globes and nerves."""

    source: npt.NDArray[np.integer]
    grid: Grid
    organs: Mapping[str, Mask]
    globes: Mapping[str, Globe]
    courses: Mapping[str, Tube]


@dataclass(frozen=True, eq=False)
class Patient:
    """A head with its tumor at 0.5 mm, and the truth on the grid of the label map."""

    head: Head
    grid: Grid
    organs: Mapping[str, Mask]
    tumor: Growth


def draw_patient(anatomy: Anatomy, core_ml: float, rng: np.random.Generator) -> Patient:
    """Draw a tumor with a core of about this volume, or none, and the head that it displaces."""
    rng_place, rng_tumor, rng_head = rng.spawn(3)
    table = relaxation_table()
    source, organs = anatomy.source, dict(anatomy.organs)

    def has(*names: str) -> Mask:
        return np.isin(source, [code for name in names for code in table.source[name]])

    tumor = no_growth(source.shape)
    if core_ml > 0:
        brain = has(*BRAIN)
        white = has("white matter")
        radius = (3000 * core_ml / (4 * np.pi)) ** (1 / 3)
        center = choose_place(brain, white, radius, rng_place)
        came_from = displacement(source.shape, center, radius, brain)

        def moved(volume: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
            out: npt.NDArray[np.integer] = ndi.map_coordinates(volume, came_from, order=0, mode="nearest")
            return out

        source = moved(source)
        organs = {name: moved(mask.astype(np.uint8)) > 0 for name, mask in organs.items()}
        tumor = grow(
            center, radius, has(*BRAIN), has("white matter"), has("CSF", "choroid plexus"), rng_tumor
        )
    head = draw_finer(
        source,
        anatomy.grid,
        anatomy.globes,
        anatomy.courses,
        organs["OpticChiasm"],
        tumor.edema,
        tumor.core,
        table,
        rng_head,
    )
    return Patient(head, anatomy.grid, organs, tumor)


def scan(patient: Patient, scans: Sequence[Scan], rng: np.random.Generator) -> dict[str, Image]:
    """Images by contrast; each has its own random stream, so that adding one does not change the others."""
    table = relaxation_table()
    return {
        how.contrast: acquire(patient.head, how, table, r) for how, r in zip(scans, rng.spawn(len(scans)))
    }
