"""What a segmentation delivers: labels, vote fractions, and volumes with the spread of the samples.

Labels are votes over the samples, on each variable separately (section 2.3.1): l, whether or not tumor
covers it; z; y. The exclusive label map shows tumor over anatomy. Fractions and volumes of the samples are as
drawn; outlines leave out specks of tumor, and small parts without core apart from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case
from tumoar.inference.gem import Fit
from tumoar.inference.gibbs import SweepInfo
from tumoar.inference.tally import Tally, Votes, pool_tallies
from tumoar.model.bias import field
from tumoar.model.gmm import Theta
from tumoar.placement.affine import AffineResult
from tumoar.result.parts import find_islands
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import select_constraints
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable, Organ

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

STORED = 0.90
"""Share of the samples whose spread of volumes a result folder keeps."""


@dataclass(frozen=True, repr=False, eq=False)
class Volume:
    """Volume of one structure, cm³: as outlined, and over the samples (NaN for a margin, which has none).

    The outline is a vote, so that its volume may lie outside the spread of the samples. On real images that
    spread is too narrow to serve as an uncertainty (docs/report.md). `samples` are the volumes one by one,
    None in a result that was read from a folder: it keeps their mean, standard deviation and central 90 %.
    """

    outlined: float
    mean: float = np.nan
    sd: float = np.nan
    central: tuple[float, float] = (np.nan, np.nan)
    samples: npt.NDArray[np.float64] | None = None

    @classmethod
    def from_samples(cls, samples: npt.NDArray[np.float64], outlined: float) -> Volume:
        """The volume of an outline whose samples are known."""
        return cls(outlined, float(samples.mean()), float(samples.std()), _spread(samples, STORED), samples)

    def __repr__(self) -> str:
        low, high = self.central
        spread = "" if np.isnan(low) else f"; spread of the samples {low:.2f}–{high:.2f} cm³"
        return f"Volume({self.outlined:.2f} cm³ outlined{spread})"

    def spread(self, share: float = STORED) -> tuple[float, float]:
        """Spread of the samples: the quantiles between which their central `share` lies.

        It tells how much the volume varies along the chain given the fitted model, and is not an interval
        that the true volume lies in with that probability.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie between 0 and 1, got {share}")
        if share == STORED:
            return self.central
        if self.samples is None:
            raise ValueError(f"only the central {STORED:.0%} of the samples is known, got share {share}")
        return _spread(self.samples, share)


def _spread(samples: npt.NDArray[np.float64], share: float) -> tuple[float, float]:
    low, high = np.quantile(samples, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation:
    """One patient's result on the case's grid; `infos` are the traces of the chains, `theta` a last sample.

    The deformation of the atlas is a point estimate, so that the uncertainty of organs is understated.
    """

    case: Case
    table: LabelTable
    placement: AffineResult
    fit: Fit
    theta: Theta
    tallies: tuple[Tally, ...]
    infos: tuple[tuple[SweepInfo, ...], ...]
    config: Config
    seed: int
    seconds: Mapping[str, float]

    @cached_property
    def tally(self) -> Tally:
        """The samples of all chains together."""
        return pool_tallies(self.tallies)

    @cached_property
    def islands(self) -> Mask:
        """(X, Y, Z) voted tumor in parts that are not outlined (`parts.find_islands`)."""
        z, y = self._voted.z == 1, self._voted.y == 1
        config, cubic = self.config, self.case.grid.voxel_volume / 1000
        return find_islands(z, y, self._excess, cubic, config.least_tumor, config.least_share)

    @property
    def _excess(self) -> npt.NDArray[np.floating] | None:
        """(X, Y, Z) intensity above the bound on the mean of edema, where a contrast has one (FLAIR)."""
        for n, contrast in enumerate(self.case.contrasts):
            for c in select_constraints(contrast, self.table):
                if c.gmm == "edema" and c.op == ">=" and len(c.refs) > 1:
                    slices = (self.table.component_slice(self.table.x_named(ref)) for ref in c.refs)
                    bound = max(self.theta.mu[q, n].max() for q in slices) + c.log_offset
                    bias = field(self.theta.C[n : n + 1], self.case.grid.shape)[0]
                    return np.nan_to_num(self.case.D[n] - bias - bound)
        return None

    @cached_property
    def votes(self) -> Votes:
        """l, z, y by vote, without islands."""
        stays = (~self.islands).astype(np.uint8)
        return Votes(self._voted.l, self._voted.z * stays, self._voted.y * stays)

    def left_out(self, organ: str) -> int:
        """Voxels of an organ in islands."""
        row = self.table.organ(organ)
        return int((organ_mask(self.table, row, self._voted) & self.islands).sum()) if row.tumor else 0

    @cached_property
    def _voted(self) -> Votes:
        return self.tally.vote()

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """(X, Y, Z) the exclusive label map: tumor over anatomy."""
        return exclusive(self.table, self.votes)

    def mask(self, organ: str) -> Mask:
        """Where the vote sees an organ, by TG-263 name; organs are not cut by tumor."""
        return organ_mask(self.table, self.table.organ(organ), self.votes)

    def probability(self, organ: str) -> Field:
        """(X, Y, Z) share of the samples in which a voxel belongs to an organ."""
        row = self.table.organ(organ)
        return self.tally.fraction(row.structures, row.tumor)

    def volume(self, organ: str) -> Volume:
        """The organ's volume, as outlined and sample by sample."""
        row, K = self.table.organ(organ), self.table.K
        tumor = {name: K + y for name, (_, y) in TUMOR_STATES.items()}
        columns = [self.table.l(s) for s in row.structures] + [tumor[t] for t in row.tumor]
        counts = np.array(self.tally.volumes)[:, columns].sum(1)
        cubic = self.case.grid.voxel_volume / 1000
        return Volume.from_samples(counts * cubic, float(self.mask(organ).sum()) * cubic)

    def entropy(self) -> Field:
        """(X, Y, Z) nats: of the votes on structures, plus of those on tumor (none, edema, core)."""
        return self.tally.entropy()


def exclusive(table: LabelTable, votes: Votes) -> npt.NDArray[np.uint8]:
    """Indices of the label table, tumor over anatomy."""
    out = table.indices[votes.l]
    for part in table.tumor:
        out[tumor_mask(part.name, votes)] = part.index
    return out


def tumor_mask(part: str, votes: Votes) -> Mask:
    """Where votes see a class of tumor."""
    _, y = TUMOR_STATES[part]
    return votes.y == 1 if y else (votes.z == 1) & (votes.y == 0)


def organ_mask(table: LabelTable, organ: Organ, votes: Votes) -> Mask:
    """Where votes see an organ, whether or not tumor covers it."""
    out = np.isin(votes.l, [table.l(s) for s in organ.structures])
    for part in organ.tumor:
        out |= tumor_mask(part, votes)
    return out
