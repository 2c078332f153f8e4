"""Tissues, sequences, and the signal of a tissue in a sequence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Tissue:
    """Relaxation times in ms, proton density, Hounsfield units, agent in mmol/l, variation in the tissue."""

    T1: float
    T2: float
    PD: float
    HU: float
    agent: float
    spread: float
    hu_spread: float


@dataclass(frozen=True)
class ScanProtocol:
    """A sequence: times in ms; `TI` are inversion times before excitation, longest first.

    Signals are relative to that of the tissue `reference`.
    """

    kind: str
    TR: float = 0.0
    TE: float = 0.0
    TI: tuple[float, ...] = ()
    agent: bool = False
    reference: str = "white matter"

    @property
    def is_mr(self) -> bool:
        """Whether this is MR, not CT."""
        return self.kind != "attenuation"

    def signal(self, tissue: Tissue, relaxivity: float) -> tuple[float, float]:
        """Mean and SD of a tissue's signal: PD · M_z · exp(−TE/T2), or Hounsfield units."""
        if not self.is_mr:
            return tissue.HU, tissue.hu_spread
        T1 = tissue.T1
        if self.agent:
            T1 = 1000.0 / (1000.0 / T1 + relaxivity * tissue.agent)
        times = (*self.TI, 0.0)
        M = 1.0 - np.exp(-(self.TR - times[0]) / T1)
        for before, after in pairwise(times):
            M = 1.0 - (1.0 + M) * np.exp(-(before - after) / T1)
        mean = float(tissue.PD * abs(M) * np.exp(-self.TE / tissue.T2))
        return mean, mean * tissue.spread


@dataclass(frozen=True)
class TissueTable:
    """Contents of `data/tissues.toml`; a tissue is identified by its position among `names`."""

    names: tuple[str, ...]
    tissues: tuple[Tissue, ...]
    relaxivity: float
    structure: Mapping[str, str]
    source: Mapping[str, tuple[int, ...]]
    layers: tuple[tuple[str, float], ...]
    scans: Mapping[str, ScanProtocol]

    def index(self, name: str) -> int:
        """Position of a tissue by name."""
        return self.names.index(name)

    def signals(self, contrast: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Mean and SD of every tissue in a contrast; MR relative to the sequence's reference tissue."""
        scan = self.scans[contrast]
        mean, sd = np.array([scan.signal(t, self.relaxivity) for t in self.tissues], np.float32).T
        unit = mean[self.index(scan.reference)] if scan.is_mr else np.float32(1)
        return mean / unit, sd / unit


@cache
def default_tissues() -> TissueTable:
    """Literature values at 1.5 T."""
    table: dict[str, Any] = tomllib.loads(
        files("tumoar").joinpath("data/tissues.toml").read_text(encoding="utf-8")
    )
    return TissueTable(
        names=tuple(table["tissue"]),
        tissues=tuple(Tissue(**row) for row in table["tissue"].values()),
        relaxivity=table["relaxivity"],
        structure=table["structure"],
        source={name: tuple(codes) for name, codes in table["source"].items()},
        layers=tuple((row["tissue"], row["thickness"]) for row in table["layer"]),
        scans={
            name: ScanProtocol(**{**row, "TI": tuple(row.get("TI", ()))})
            for name, row in table["sequence"].items()
        },
    )
