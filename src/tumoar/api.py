"""The front door for Python: read a case, take a model, segment, look at the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tumoar.app.pipeline import Given, Progress
from tumoar.app.pipeline import segment as _segment
from tumoar.geometry import image
from tumoar.geometry.pieces import pieces_of_mask
from tumoar.inference.tally import Votes
from tumoar.io.contrasts import read_contrasts
from tumoar.io.dicom import grid_of
from tumoar.io.dose import GivenDose, load_dose, require_dose
from tumoar.io.images import read_scans, series_at
from tumoar.io.models import default_model, load_model
from tumoar.io.nifti import read_nifti
from tumoar.io.rois import Roi, look_of
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.model import generative
from tumoar.preprocess.case import build_case
from tumoar.radiotherapy.dvh import Dvh, Sampled, dvh, thinned
from tumoar.radiotherapy.structures import require_frame
from tumoar.report import render, report_data
from tumoar.result import segmentation as result
from tumoar.result.checks import review
from tumoar.result.folder import read_manifest, replace_text
from tumoar.result.masks import label_table
from tumoar.result.native import deliver
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import GeometryError
from tumoar.vocabulary.labels import LabelTable


def _as(kind: type, value: Any) -> Any:
    """The same fields under a class that adds to them."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(value)})


class Case(image.Case):
    """A patient's images on one grid."""

    @classmethod
    def from_files(
        cls,
        *,
        reference: str | None = None,
        register: bool = True,
        skull_stripped: bool | None = None,
        contrasts: str | Path | None = None,
        **files: str | Path,
    ) -> Self:
        """Bring together images named by contrast (t1, t1c, t2, flair, dir, ct, other).

        Each is a NIfTI file or a folder with a DICOM series. `contrasts` is a file with further contrasts.
        """
        images = {name: scan.image for name, scan in read_scans(files).items()}
        case = build_case(
            images,
            reference=reference,
            register=register,
            skull_stripped=skull_stripped,
            contrasts=read_contrasts(contrasts),
        )
        found: Self = _as(cls, case)
        return found


class Model(generative.Model):
    """Atlas and shape priors."""

    @classmethod
    def default(cls) -> Self:
        """The model inside the package."""
        found: Self = _as(cls, default_model())
        return found

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A model file of `tumoar train combine`."""
        found: Self = _as(cls, load_model([path]))
        return found


class Segmentation(result.Segmentation):
    """A result, which can also show itself."""

    def report(self, path: str | Path, *, keep_face: bool = False) -> None:
        """Write the report, one page that opens offline; its images show no face unless it is to be kept."""
        about = {"seed": self.seed, "config": self.config.model_dump(mode="json")}
        data = report_data(self, review(self), about, keep_face=keep_face)
        replace_text(Path(path), render(data))

    def dvh(self, organ: str, dose: image.Image | str | Path, *, fractions: int | None = None) -> Sampled:
        """Dose-volume histogram of a structure, and of its samples where they were kept.

        Both are measured alike on the voxels of the case, and both leave out what the outline leaves out.
        `fractions` says that the dose, a file, is of one of so many equal fractions.
        """
        if isinstance(dose, image.Image):
            require_dose(dose)
            given = GivenDose(dose)
        else:
            given = load_dose(dose, fractions=fractions)
        field = given.image
        require_frame(image.frame_digest(self.case.grid.frame), field)
        row, grid = self.table.organ(organ), self.case.grid

        def curve(votes: Votes) -> Dvh:
            mask = result.organ_mask(self.table, row, votes)
            return thinned(dvh(pieces_of_mask(image.Image(mask.astype(np.uint8), grid)), field))

        stays = (~self.islands).astype(np.uint8)
        drawn = (Votes(votes.l, votes.z * stays, votes.y * stays) for votes in self.tally.drawn())
        return Sampled(curve(self.votes), tuple(curve(votes) for votes in drawn), given.notes)

    def to_rtstruct(self, reference: str | Path, path: str | Path, *, smooth: bool = False) -> None:
        """Write contours on the slices of a series that was segmented (see `tumoar export` for others)."""
        series = series_at(reference)
        grid, _ = grid_of(series)
        name = next((given.name for given in self.case.inputs if given.grid == grid), None)
        if name is None:
            raise GeometryError(
                "B33", "the series is none of the images that were segmented", found=series.name
            )
        votes = deliver(self, name).votes
        rois = [
            Roi(organ.name, organ.kind, color, result.organ_mask(self.table, organ, votes), code)
            for organ in self.table.organs
            for color, code in [look_of(self.table, organ)]
        ]
        write_rtstruct(path, rois, series, smooth=smooth)


def segment(
    case: image.Case,
    model: generative.Model | None = None,
    config: Config | None = None,
    *,
    seed: int = 0,
    given: Given | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    keeps_samples: bool = False,
    trust_contrasts: bool = False,
) -> Segmentation:
    """Labels of one patient; the model in the package unless another is given.

    An image that is clearly not of the contrast it is given as is refused before anything is fitted; with
    `trust_contrasts` it is only noted.
    """
    found = _segment(
        case,
        model or default_model(),
        config,
        seed=seed,
        given=given,
        watch=watch,
        keeps_samples=keeps_samples,
        trust_contrasts=trust_contrasts,
    )
    out: Segmentation = _as(Segmentation, found)
    return out


@dataclass(frozen=True)
class Stored:
    """A finished result on disk, in the grid of its reference image."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def labels(self) -> npt.NDArray[np.generic]:
        """The exclusive label map."""
        return read_nifti(self.folder / "segmentation.nii.gz").data

    def mask(self, organ: str) -> npt.NDArray[np.bool_]:
        """One structure, by TG-263 name."""
        return np.asarray(read_nifti(self.folder / "structures" / f"{self._known(organ)}.nii.gz").data, bool)

    def probability(self, organ: str) -> npt.NDArray[np.generic]:
        """Share of the samples in which a voxel belongs to a structure."""
        return read_nifti(self.folder / "probabilities" / f"{self._known(organ)}.nii.gz").data

    def volume(self, organ: str) -> dict[str, Any]:
        """The structure's row of volumes.tsv."""
        return next(dict(row) for row in self.manifest["volumes"] if row["name"] == self._known(organ))

    @property
    def table(self) -> LabelTable:
        """The label table that the result was made with."""
        return label_table(self.manifest)

    def _known(self, name: str) -> str:
        return self.table.organ(name).name


def load_result(folder: str | Path) -> Stored:
    """A finished result of `tumoar segment`, every file checked against its manifest."""
    return Stored(Path(folder), read_manifest(Path(folder)))
