"""Result of a segmentation: labels, vote fractions, and volumes with the spread of the samples.

Labels are votes over the samples, separately for each variable (section 2.3.1): l, whether or not tumor
covers it; z; y. The exclusive label map shows tumor over anatomy. Fractions and sample volumes include all
that was sampled; outlines omit specks of tumor and of organs, and small separate parts of tumor without core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Case
from tumoar.inference.gem import Fit
from tumoar.inference.gibbs import SweepInfo
from tumoar.inference.initialise import find_enhancing
from tumoar.inference.last import Last
from tumoar.inference.tally import Tally, Votes, pool_tallies
from tumoar.model.bias import field as bias_field
from tumoar.model.calibration import CORE, NOTHING, NOWHERE, WHOLE_TUMOR, Calibration, Conditions
from tumoar.model.cavity import find_clear
from tumoar.model.compartments import Compartments, find_compartments
from tumoar.model.conformal import SHARES
from tumoar.model.gmm import Theta
from tumoar.model.pathway import trace
from tumoar.placement.affine import AffineResult
from tumoar.result.parts import WHOLE, find_closed, find_film, find_islands
from tumoar.result.prediction import (
    Prediction,
    describe_interval,
    predict_organ,
    predict_tumor,
)
from tumoar.result.specks import fill_specks, find_specks
from tumoar.result.tumor import Tumor
from tumoar.result.under import structure_under
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import edema_is_visible, select_constraints
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable, Organ

Field = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

STORED = 0.90
"""Central fraction of the samples whose volume range a result folder stores."""


@dataclass(frozen=True, repr=False, eq=False)
class Volume:
    """Volume of one structure, cm³: as outlined, and over the samples (NaN for margins, which have none).

    The outline is a vote, so its volume may lie outside the spread of the samples. On real images that spread
    is too narrow to serve as an uncertainty (docs/report.md). `samples` are the volumes of the samples; None
    in a stored result, which keeps only their mean, standard deviation and central 90 %. `predicted` are
    prediction intervals by their probability, if the structure is calibrated; `calibrated_on` says on what.
    """

    outlined: float
    mean: float = np.nan
    sd: float = np.nan
    central: tuple[float, float] = (np.nan, np.nan)
    samples: npt.NDArray[np.float64] | None = None
    predicted: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    calibrated_on: str = ""

    @classmethod
    def from_samples(cls, samples: npt.NDArray[np.float64], outlined: float) -> Volume:
        """Volume of an outline with known samples."""
        return cls(outlined, float(samples.mean()), float(samples.std()), _spread(samples, STORED), samples)

    def __repr__(self) -> str:
        low, high = self.predicted.get(STORED, self.central)
        what = describe_interval(self.calibrated_on)
        shown = "" if np.isnan(low) else f"; {what} {low:.2f}–{high:.2f} cm³"
        return f"Volume({self.outlined:.2f} cm³ outlined{shown})"

    def interval(self, share: float = STORED) -> tuple[float, float]:
        """Prediction interval: an expert's volume lies in it with this probability, 0.5 or 0.9.

        Only for structures, models, settings and contrasts that are calibrated (`calibrated_on`).
        """
        if not self.predicted:
            raise ValueError("no calibration holds for this volume; spread() is that of the samples")
        if share not in self.predicted:
            known = " and ".join(f"{s:g}" for s in self.predicted)
            raise ValueError(f"the intervals of {known} are known, got share {share}")
        return self.predicted[share]

    def spread(self, share: float = STORED) -> tuple[float, float]:
        """Quantiles that enclose the central `share` of the samples.

        They describe how much the volume varies along the chain given the fitted model. They are not a
        confidence interval of the true volume.
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
    """Result of one patient on the grid of the case; `infos` are traces of the chains, `theta` a last sample.

    The deformation of the atlas is a point estimate, so the uncertainty of organs is understated.
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
    calibration: Calibration = NOTHING
    conditions: Conditions = NOWHERE  # for which a calibration must hold
    last: Last | None = None  # what the first chain left

    @cached_property
    def tally(self) -> Tally:
        """Pooled samples of all chains."""
        return pool_tallies(self.tallies)

    @cached_property
    def islands(self) -> Mask:
        """(X, Y, Z) voted tumor in parts that are not outlined (`parts.find_islands`).

        Where no contrast shows edema, a part without core needs to be the largest.
        """
        z, y = self._voted.z == 1, self._voted.y == 1
        config, cubic = self.config, self.case.grid.voxel_volume / 1000
        is_hidden = config.least_share > 0 and not edema_is_visible(self.case.contrasts)
        share = 1.0 if is_hidden else config.least_share
        return find_islands(z, y, self._excess, cubic, config.least_tumor, share)

    @property
    def _excess(self) -> npt.NDArray[np.floating] | None:
        """(X, Y, Z) intensity above the bound on the mean of edema, where a contrast has one (FLAIR)."""
        if self.bound is None:
            return None
        n, bound = self.bound
        bias = bias_field(self.theta.C[n : n + 1], self.case.grid.shape)[0]
        return np.nan_to_num(self.case.D[n] - bias - bound)

    @property
    def bound(self) -> tuple[int, float] | None:
        """The channel with a bound on the mean of edema from below (FLAIR), and that bound."""
        for n, contrast in enumerate(self.case.contrasts):
            for c in select_constraints(contrast, self.table):
                if c.gmm == "edema" and c.op == ">=" and len(c.refs) > 1:
                    slices = (self.table.component_slice(self.table.x_named(ref)) for ref in c.refs)
                    return n, float(max(self.theta.mu[q, n].max() for q in slices) + c.log_offset)
        return None

    @cached_property
    def votes(self) -> Votes:
        """l, z, y by vote, without islands of tumor and specks of organs."""
        return fill_specks(self.table, self._with_specks, self.specks, self.case.grid.spacing)

    @cached_property
    def specks(self) -> Mask:
        """(X, Y, Z) voted organs in parts that are not outlined (`specks.find_specks`)."""
        if self.config.vote == "majority":
            return np.zeros(self.case.grid.shape, bool)
        return find_specks(self.table, self._with_specks.l, self.case.grid.voxel_volume / 1000)

    @cached_property
    def _with_specks(self) -> Votes:
        stays = (~self.islands).astype(np.uint8)
        l = self._voted.l
        if self.table.cavity is not None:
            gone = self.closed | (self.islands & (l == self.table.cavity))
            l = l.copy()
            l[gone] = structure_under(self.table, l, gone)
            l = np.where(self.film, np.uint8(self.table.cavity), l)
        return Votes(l, self._voted.z * stays, self._voted.y * stays)

    @cached_property
    def closed(self) -> Mask:
        """(X, Y, Z) voted cavity in parts that count as core (`parts.find_closed`)."""
        if self.table.cavity is None:
            return np.zeros(self._voted.l.shape, bool)
        cavity = self._voted.l == self.table.cavity
        brain = self.table.in_brain[self._voted.l]
        fluid = find_clear(self.fit.labels, self.case.contrasts, self.case.D, self.fit.theta)
        return find_closed(cavity, brain, fluid, self.case.grid.spacing, self.case.grid.voxel_volume / 1000)

    @cached_property
    def film(self) -> Mask:
        """(X, Y, Z) voted core that counts as the wall of the cavity (`parts.find_film`)."""
        if self.table.cavity is None:
            return np.zeros(self._voted.l.shape, bool)
        cavity = (self._voted.l == self.table.cavity) & ~self.closed & ~self.islands
        residual = (self._voted.y == 1) & ~cavity & ~self.islands
        enhancing = find_enhancing(self.fit.labels, self.case.contrasts, self.case.D, self.fit.theta)
        return find_film(residual, cavity, enhancing, self.case.grid.spacing)

    def left_out(self, organ: str) -> int:
        """Number of voxels of an organ in islands, or in specks."""
        row = self.table.organ(organ)
        if row.tumor:
            return int((organ_mask(self.table, row, self._voted) & self.islands).sum())
        specks = organ_mask(self.table, row, self._with_specks) & self.specks
        return int((specks & ~organ_mask(self.table, row, self.votes)).sum())

    @cached_property
    def _voted(self) -> Votes:
        return self.tally.vote(self.config.vote, self.certain)

    @cached_property
    def certain(self) -> Mapping[int, Mask]:
        """(X, Y, Z) voxels that courses pass, by structure, where no tumor covers them."""
        return trace(self.fit.courses, self.case.grid)

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """(X, Y, Z) the exclusive label map: tumor over anatomy."""
        return exclusive(self.table, self.votes)

    @cached_property
    def compartments(self) -> Compartments:
        """(X, Y, Z) hemispheres and what lies below the tentorium (`model.compartments`)."""
        return find_compartments(self.fit.placed, self.fit.nodes)

    def mask(self, organ: str) -> Mask:
        """Mask of an organ by vote, by TG-263 name; organs are not cut by tumor."""
        return organ_mask(self.table, self.table.organ(organ), self.votes)

    def probability(self, organ: str) -> Field:
        """(X, Y, Z) fraction of the samples in which a voxel belongs to an organ."""
        row = self.table.organ(organ)
        return self.tally.fraction(row.structures, row.tumor)

    def volume(self, organ: str) -> Volume:
        """Volume of an organ, as outlined and per sample."""
        row, K = self.table.organ(organ), self.table.K
        tumor = {name: K + y for name, (_, y) in TUMOR_STATES.items()}
        columns = [self.table.l(s) for s in row.structures] + [tumor[t] for t in row.tumor]
        cubic = self.case.grid.voxel_volume / 1000
        samples = np.array(self.tally.volumes)[:, columns].sum(1) * cubic
        volume = Volume.from_samples(samples, float(self.mask(organ).sum()) * cubic)
        return _with_prediction(volume, self.prediction(organ))

    def whole_tumor(self) -> Volume:
        """Volume of core and edema together."""
        cubic = self.case.grid.voxel_volume / 1000
        samples = np.array(self.tally.volumes)[:, self.table.K :].sum(1) * cubic
        volume = Volume.from_samples(samples, float((self.votes.z == 1).sum()) * cubic)
        return _with_prediction(volume, self.tumor_predictions.get(WHOLE_TUMOR))

    @cached_property
    def tumor_predictions(self) -> Mapping[str, Prediction]:
        """Core and whole tumor as an expert would draw them, as far as they are calibrated."""
        if not any(self.calibration.find(name, self.conditions) for name in (CORE, WHOLE_TUMOR)):
            return {}
        core = self.votes.y == 1
        core_votes, votes = (self.tally.fraction(tumor=parts) for parts in ((CORE,), WHOLE))
        brain = np.asarray(self.table.in_brain[self.votes.l])
        i, j, k = map(float, self.case.grid.spacing)
        tumor = Tumor(core, self.votes.z == 1, core_votes, votes, brain, (i, j, k))
        return predict_tumor(tumor, self.calibration, self.conditions)

    def prediction(self, organ: str) -> Prediction | None:
        """A structure as an expert would draw it; None if it is empty or not calibrated."""
        row = self.table.organ(organ)
        if row.tumor:
            name = {(CORE,): CORE, WHOLE: WHOLE_TUMOR}.get(tuple(row.tumor), "")
            return self.tumor_predictions.get(name)
        if organ not in self._predicted:
            i, j, k = map(float, self.case.grid.spacing)
            mask, votes = Segmentation.mask(self, organ), self.probability(organ)
            self._predicted[organ] = predict_organ(
                organ, mask, votes, (i, j, k), self.calibration, self.conditions
            )
        return self._predicted[organ]

    @cached_property
    def _predicted(self) -> dict[str, Prediction | None]:
        return {}

    def entropy(self) -> Field:
        """(X, Y, Z) entropy in nats, of the votes on structures plus those on tumor (none, edema, core)."""
        return self.tally.entropy()


def _with_prediction(volume: Volume, prediction: Prediction | None) -> Volume:
    if prediction is None:
        return volume
    predicted = {share: prediction.volumes(share) for share in SHARES}
    own = replace(
        volume,
        outlined=prediction.border.volume(0),
        predicted=predicted,
        calibrated_on=prediction.calibrated_on,
    )
    return scale_volume(own, volume.outlined)  # small parts of the outline may have been removed


def scale_volume(volume: Volume, outlined: float) -> Volume:
    """The volume on other voxels, where the outline has another size; an empty one has no interval."""
    if not outlined:
        return replace(volume, outlined=0.0, predicted={}, calibrated_on="")
    ratio = outlined / volume.outlined if volume.outlined else 1.0
    predicted = {share: (low * ratio, high * ratio) for share, (low, high) in volume.predicted.items()}
    return replace(volume, outlined=outlined, predicted=predicted)


def exclusive(table: LabelTable, votes: Votes) -> npt.NDArray[np.uint8]:
    """Indices of the label table, tumor over anatomy."""
    out = table.indices[votes.l]
    for part in table.tumor:
        out[tumor_mask(table, part.name, votes)] = part.index
    return out


def tumor_mask(table: LabelTable, part: str, votes: Votes) -> Mask:
    """Mask of a tumor class; core does not include a cavity."""
    _, y = TUMOR_STATES[part]
    if not y:
        return (votes.z == 1) & (votes.y == 0)
    return votes.y == 1 if table.cavity is None else (votes.y == 1) & (votes.l != table.cavity)


def organ_mask(table: LabelTable, organ: Organ, votes: Votes) -> Mask:
    """Mask of an organ, whether or not tumor covers it."""
    out = np.isin(votes.l, [table.l(s) for s in organ.structures])
    for part in organ.tumor:
        out |= tumor_mask(table, part, votes)
    return out
