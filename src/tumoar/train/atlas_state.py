"""Settings and state of the atlas training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.float64]
Tetrahedra = npt.NDArray[np.int32]
Alpha = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Level:
    """Mesh size and iterations of a level; one size, or for thin organs, borders and uncertain places."""

    sizes: tuple[float, ...]
    iterations: int


@dataclass(frozen=True)
class AtlasSettings:
    """Settings of the training; lengths in voxels (mm)."""

    levels: tuple[Level, ...] = (
        Level((12.0,), 8),
        Level((7.0,), 8),
        Level((2.4, 3.2, 4.6), 10),
        Level((1.7, 2.5, 3.8), 14),
    )
    slope: float = 0.35
    thin: tuple[str, ...] = ("optic chiasm", "left optic nerve", "right optic nerve")
    catch_all: tuple[str, ...] = ("background", "white matter", "gray matter", "deep gray matter", "CSF")
    stiffness: float = 0.1  # of the deformation prior
    floor: float = 1e-4  # probability that a training label is noise
    kappa: float = 0.01  # Dirichlet count per label and node: zeros would persist
    evaluations: int = 3  # of each head's cost per iteration
    reference_evaluations: int = 4  # 0 keeps it where it is
    em_passes: int = 2
    first_em_passes: int = 6
    collapses: int = 1  # passes over all edges
    polish: int = 5  # iterations after each pass
    protect: float = 0.05  # nodes with more than this of a thin organ do not collapse
    alike: float = 0.3  # maximum total variation between the probabilities of two nodes to be merged
    collapse_screen: float = 60.0  # nats
    collapse_rounds: int = 2
    min_volume: float = 0.5  # 6 times the volume, after a collapse
    min_quality: float = 0.2
    untrained: float = 0.01  # probability of labels added after training
    support: float = 1e-3  # they are added where some brain label is more probable than this


@dataclass(frozen=True)
class AtlasState:
    """State of the training: reference (V, 3), tetrahedra (T, 4), positions (S, V, 3), alpha (V, K).

    `done` is the number of steps done; `data` the cost of all label maps at the last update of probabilities.
    """

    done: int
    reference: Nodes
    tetrahedra: Tetrahedra
    positions: Nodes
    alpha: Alpha
    data: float
