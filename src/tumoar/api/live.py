"""A result in memory, as `tumoar.segment` returns it without an output folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.api.result import Result
from tumoar.app.publish import Job, describe, publish, render_report
from tumoar.app.segment import Outcome
from tumoar.app.targets import add_margins_to_result
from tumoar.geometry.image import Grid, Image, frame_digest
from tumoar.geometry.pieces import cut_mask
from tumoar.inference.tally import Votes
from tumoar.io.dicom import grid_of
from tumoar.io.dose import GivenDose, load_dose, require_dose
from tumoar.io.identity import require_patient
from tumoar.io.images import series_at
from tumoar.io.rois import Roi, look_of
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.numerics.threads import use_threads
from tumoar.preprocess.case import resample_to_input
from tumoar.radiotherapy.dvh import Dvh, Sampled, dvh, thin_dvh
from tumoar.radiotherapy.export import describe_roi_interval
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.structures import DRAWN, require_frame
from tumoar.radiotherapy.targets import find_anatomy, grow_targets
from tumoar.report import still_pictures
from tumoar.result import segmentation
from tumoar.result.checks import review
from tumoar.result.folder import Options, note_emptied, replace_text, status
from tumoar.result.native import HALF, deliver, remove_small_parts
from tumoar.result.parts import describe_gtv
from tumoar.result.prediction import Prediction, draw_predictions
from tumoar.result.segmentation import Mask, Volume, organ_mask, scale_volume
from tumoar.result.stored import known_contrast, known_name
from tumoar.vocabulary.errors import GeometryError
from tumoar.vocabulary.notes import Note


@dataclass(frozen=True, eq=False, repr=False)
class Segmentation(segmentation.Segmentation, Result):
    """A result in memory, on 1 mm voxels around the head; `outcome` describes the run."""

    outcome: Outcome | None = None
    margins: Margins | None = None

    @property
    def status(self) -> str:
        """OK or NEEDS REVIEW."""
        return status(self.notes)

    @cached_property
    def _reviewed(self) -> tuple[Note, ...]:
        return review(self) if self.outcome is None else self.outcome.notes

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """What a reviewer should know."""
        least = self._options.least_cm3
        gone = [n for n in self._organs if least > 0 and _vote_mask(self, n).any() and not self.mask(n).any()]
        return (*self._reviewed, *(note_emptied(name, least) for name in gone))

    @property
    def stamps(self) -> tuple[str, ...]:
        """Marks of the run, such as "fast"."""
        return () if self.outcome is None else self.outcome.job.stamps

    @property
    def contrasts(self) -> tuple[str, ...]:
        """Names of the input images."""
        return tuple(given.name for given in self.case.inputs)

    @property
    def reference(self) -> str:
        """The image that defines the space of the case."""
        return self.case.reference

    @property
    def grid(self) -> Grid:
        """Voxels of `labels`, `mask` and `probability`: those of the case."""
        return self.case.grid

    @property
    def structures(self) -> tuple[str, ...]:
        """Names of all structures, margins last."""
        return (*self._organs, *self._targets)

    @property
    def _organs(self) -> list[str]:
        wanted = self._options.organs
        return [organ.name for organ in self.table.organs if not wanted or organ.name in wanted]

    @property
    def _options(self) -> Options:
        return Options() if self.outcome is None else self.outcome.job.options

    @cached_property
    def _grown(self) -> list[tuple[dict[str, Any], Mask]]:
        """Table rows and masks of CTV and PTV, if margins were requested."""
        if self.margins is None:
            return []
        anatomy = find_anatomy(self.mask("Brain"), self.labels, self.table, self.compartments)
        return grow_targets(self.mask("GTV"), anatomy, self.case.grid, self.margins)

    @property
    def _targets(self) -> dict[str, Mask]:
        return {row["name"]: mask for row, mask in self._grown}

    def labels_on(self, contrast: str) -> Image:
        """Label map on the voxels of an input image."""
        found = deliver(self, known_contrast(contrast, self.contrasts))
        return Image(found.labels, found.grid)

    def mask(self, name: str) -> Mask:
        """(X, Y, Z) mask of a structure or margin, by TG-263 name; organs are not cut by tumor."""
        if name in ("CTV", "PTV"):
            return self._targets[known_name(name, self.structures)]
        mask = _vote_mask(self, name)
        least = self._options.least_cm3
        return remove_small_parts(mask, self.case.grid, least)[0] if least > 0 else mask

    def volume(self, name: str) -> Volume:
        """Volume of a structure, as outlined and over the samples."""
        if name in self._targets:
            return Volume(float(self._targets[name].sum()) * self.case.grid.voxel_volume / 1000)
        return super().volume(name)

    def predicted(self, name: str) -> npt.NDArray[np.float32]:
        """(X, Y, Z) probability that an expert's structure contains a voxel, if it is calibrated."""
        found = self.prediction(known_name(name, self._organs))
        if found is None:
            raise KeyError(f"no calibration holds for '{name}'")
        return found.probability()

    def report(self, path: str | Path, *, keep_face: bool | None = None) -> None:
        """Write the report, one page that opens offline.

        Its images show no face unless the run used `keep_face`, or it is given here.
        """
        keep_face = self._job.keep_face if keep_face is None else keep_face
        notes = [note.to_dict() for note in self.notes]
        volumes = [{"name": name, "outlined_cm3": self.volume(name).outlined} for name in self._organs]
        manifest = {**self._manifest, "notes": notes, "volumes": volumes}
        name = self._job.case_name
        page = render_report(self, keep_face, manifest, case_name=name, targets=self._grown)
        replace_text(Path(path), page)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a result folder as `tumoar segment` does."""
        log = () if self.outcome is None else self.outcome.log
        publish(folder, self, self._reviewed, self._manifest, self._job, log, overwrite=overwrite)
        if self.margins is not None:
            add_margins_to_result(Path(folder), self.margins)

    def dvh(self, name: str, dose: Image | str | Path, *, fractions: int | None = None) -> Sampled:
        """Dose-volume histogram of a structure, and of its samples.

        If the structure is calibrated, samples are what an expert may draw; the samples of GTV and whole
        tumor belong together. Else they are those of the chain, if they were kept, and omit tumor that the
        outline omits. All use the voxels of the case. If the dose file is for
        one of several equal fractions, give their number as `fractions`.
        """
        if isinstance(dose, Image):
            require_dose(dose)
            given = GivenDose(dose)
        else:
            given = load_dose(dose, fractions=fractions)
            self._require_patient(given.person, "the dose")
        require_frame(frame_digest(self.case.grid.frame), given.image)
        outline = _curve(self.mask(name), self.case.grid, given.image)
        if name in self._targets:
            return Sampled(outline, (), given.notes)
        predicted = self.prediction(name)
        if predicted is not None:
            drawn_masks = self._drawn(name, predicted)
            curves = tuple(_curve(mask, self.case.grid, given.image) for mask in drawn_masks)
            return Sampled(outline, curves, given.notes, predicted.calibrated_on)
        row, stays = self.table.organ(name), (~self.islands).astype(np.uint8)
        drawn = (Votes(votes.l, votes.z * stays, votes.y * stays) for votes in self.tally.iter_samples())
        masks = (organ_mask(self.table, row, votes) for votes in drawn)
        samples = tuple(_curve(mask, self.case.grid, given.image) for mask in masks)
        return Sampled(outline, samples, given.notes)

    def _drawn(self, name: str, predicted: Prediction) -> Iterator[Mask]:
        """Draw a structure as experts may; the same field displaces core and whole tumor."""
        tumor = self.tumor_predictions
        part = next((part for part, found in tumor.items() if found is predicted), name)
        together = tumor if part in tumor else {name: predicted}
        for drawn in draw_predictions(together, DRAWN, np.random.default_rng(self.seed)):
            yield drawn[part]

    def to_rtstruct(self, reference: str | Path, path: str | Path, *, smooth: bool = False) -> None:
        """Write contours on the slices of a segmented series (for others use `tumoar export`)."""
        series = series_at(reference)
        self._require_patient(series.person, "the series")
        grid, _ = grid_of(series)
        name = next((given.name for given in self.case.inputs if given.grid == grid), None)
        if name is None:
            raise GeometryError("B33", "the series was not segmented", found=series.name)
        votes, least = deliver(self, name).votes, self._options.least_cm3
        rois = []
        for organ in (self.table.organ(name) for name in self._organs):
            color, code = look_of(self.table, organ)
            mask, _, _ = remove_small_parts(organ_mask(self.table, organ, votes), grid, least)
            outlined = float(mask.sum()) * grid.voxel_volume / 1000
            interval = describe_roi_interval(scale_volume(self.volume(organ.name), outlined))
            rois.append(Roi(organ.name, organ.kind, color, mask, code, describe_gtv(organ), interval))
        for target, mask in self._targets.items():
            color, code = look_of(self.table, self.table.organ("GTV"))
            there = resample_to_input(mask.astype(np.float32), self.case, name) > HALF
            rois.append(Roi(target, target, color, there, code))
        write_rtstruct(path, rois, series, smooth=smooth, key=self._manifest["key"])

    @property
    def _job(self) -> Job:
        return Job(None, self.config, self.seed) if self.outcome is None else self.outcome.job

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        """Manifest that a folder would have."""
        if self.outcome is not None and self.outcome.manifest is not None:
            return dict(self.outcome.manifest)
        return describe(self, {}, self._job, "", use_threads(None))

    def _require_patient(self, person: tuple[str, ...], what: str) -> None:
        require_patient(self._manifest["patient"], self._manifest["key"], person, what)

    def _pictures(self) -> list[dict[str, Any]]:
        return still_pictures(self)


def _vote_mask(result: segmentation.Segmentation, name: str) -> Mask:
    """A structure before small parts are removed."""
    return segmentation.Segmentation.mask(result, name)


def _curve(mask: Mask, grid: Grid, dose: Image) -> Dvh:
    return thin_dvh(dvh(cut_mask(Image(mask.astype(np.uint8), grid)), dose))
