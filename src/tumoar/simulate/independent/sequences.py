"""Tissues and sequences of the independent simulator, and the signal equations.

The equations are those of Bernstein, King and Zhou, Handbook of MRI Pulse Sequences (2004), fully spoiled.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

FIELDS = (1.5, 3.0)
"""Field strengths in tesla for which there are relaxation times."""


@dataclass(frozen=True)
class Tissue:
    """Proton density, relaxation times in ms per field, HU, agent in mmol/l, variation inside the tissue."""

    PD: float
    T1: tuple[float, float]
    T2: tuple[float, float]
    HU: float
    agent: float
    texture: float
    hu_sd: float


@dataclass(frozen=True)
class Sequence:
    """A pulse sequence: times in ms, flip angle in degrees."""

    kind: str
    TR: float = 0.0
    TE: float = 0.0
    TI: float = 0.0
    flip: float = 90.0
    echoes: int = 1
    spacing: float = 0.0
    agent: bool = False

    @property
    def is_mr(self) -> bool:
        """Whether this is MR, not CT."""
        return self.kind != "attenuation"

    def signal(self, PD: float, T1: float, T2: float) -> float:
        """Signal of MR, relative to that of fully relaxed water at TE = 0."""
        decay = np.exp(-self.TE / T2)
        if self.kind == "spoiled":
            return float(PD * spoiled(self.TR, T1, self.flip) * decay)
        if self.kind == "mprage":
            M = mprage(self.TR, self.TI, T1, self.flip, self.echoes, self.spacing)
            return float(PD * abs(M) * decay)
        if self.kind == "turbo":
            return float(PD * (1 - np.exp(-self.TR / T1)) * decay)
        if self.kind == "flair":
            return float(PD * abs(1 - 2 * np.exp(-self.TI / T1) + np.exp(-self.TR / T1)) * decay)
        raise ValueError(f"unknown kind of sequence: {self.kind}")


def spoiled(TR: float, T1: float, flip: float) -> float:
    """Transverse magnetization of a spoiled gradient echo in its steady state."""
    E, a = np.exp(-TR / T1), np.deg2rad(flip)
    return float(np.sin(a) * (1 - E) / (1 - np.cos(a) * E))


def mprage(TR: float, TI: float, T1: float, flip: float, echoes: int, spacing: float) -> float:
    """Transverse magnetization at the middle echo of an inversion-prepared train in its steady state.

    Magnetization follows M → a M + b through each period, so that the steady state is a fixed point.
    """
    a, half = np.deg2rad(flip), echoes // 2
    before, after = TI - half * spacing, TR - TI - (echoes - half) * spacing
    if before < 0 or after < 0:
        raise ValueError("the train of echoes does not fit around TI, or not into TR")
    step = _relax(spacing, T1)
    train = (step[0] * np.cos(a), step[1])  # excitation, then relaxation
    to_middle = [(-1.0, 0.0), _relax(before, T1)] + [train] * half
    cycle = to_middle + [train] * (echoes - half) + [_relax(after, T1)]
    scale, offset = _compose(cycle)
    M = offset / (1 - scale)  # just before the inversion
    scale, offset = _compose(to_middle)
    return float((scale * M + offset) * np.sin(a))


def _relax(time: float, T1: float) -> tuple[float, float]:
    E = float(np.exp(-time / T1))
    return E, 1 - E


def _compose(maps: list[tuple[float, float]]) -> tuple[float, float]:
    scale, offset = 1.0, 0.0
    for a, b in maps:
        scale, offset = a * scale, a * offset + b
    return scale, offset


@dataclass(frozen=True)
class RelaxationTable:
    """Contents of `data/relaxation.toml`; a tissue is identified by its position among `names`."""

    names: tuple[str, ...]
    tissues: tuple[Tissue, ...]
    relaxivity: tuple[float, float]
    source: Mapping[str, tuple[int, ...]]
    sequences: Mapping[str, Sequence]

    def index(self, name: str) -> int:
        """Position of a tissue by name."""
        return self.names.index(name)

    def signals(self, contrast: str, field: float) -> npt.NDArray[np.float32]:
        """(3, tissues): signals where T1 is one SD of the texture below its mean, at it and above it.

        MR relative to white matter; CT in HU, one SD of HU below and above.
        """
        sequence, at = self.sequences[contrast], FIELDS.index(field)
        if not sequence.is_mr:
            rows = [[t.HU + s * t.hu_sd for t in self.tissues] for s in (-1, 0, 1)]
            return np.array(rows, np.float32)
        rows = [[self._mr(t, sequence, at, s) for t in self.tissues] for s in (-1, 0, 1)]
        return np.array(rows, np.float32) / np.float32(rows[1][self.index("white matter")])

    def _mr(self, tissue: Tissue, sequence: Sequence, at: int, shift: int) -> float:
        T1 = tissue.T1[at] * (1 + shift * tissue.texture)
        if sequence.agent:
            T1 = 1000 / (1000 / T1 + self.relaxivity[at] * tissue.agent)
        return sequence.signal(tissue.PD, T1, tissue.T2[at])


@cache
def relaxation_table() -> RelaxationTable:
    """The table of the package."""
    table = tomllib.loads(files("tumoar").joinpath("data/relaxation.toml").read_text(encoding="utf-8"))
    rows = {
        name: Tissue(**{**row, "T1": tuple(row["T1"]), "T2": tuple(row["T2"])})
        for name, row in table["tissue"].items()
    }
    return RelaxationTable(
        names=tuple(rows),
        tissues=tuple(rows.values()),
        relaxivity=tuple(table["relaxivity"]),
        source={name: tuple(codes) for name, codes in table["source"].items()},
        sequences={name: Sequence(**row) for name, row in table["sequence"].items()},
    )
