"""Interface of all results, in memory or read from a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.radiotherapy.dvh import Sampled
from tumoar.report import notebook_html
from tumoar.report.notebook import interval_text
from tumoar.result.segmentation import Volume
from tumoar.vocabulary.notes import Note

WIDEST, MOST_NOTES = 100, 5


class Result(ABC):
    """One interface for results: `Segmentation` in memory and `StoredResult` on disk.

    Arrays are indexed (X, Y, Z) on `grid`: 1 mm voxels around the head in memory, the voxels of the reference
    image on disk. `labels_on` gives the same array for both. Structures have TG-263 names; "CTV" and "PTV"
    exist if margins were requested. Unknown names raise a KeyError.
    """

    @property
    @abstractmethod
    def status(self) -> str:
        """OK or NEEDS REVIEW."""

    @property
    @abstractmethod
    def notes(self) -> Sequence[Note]:
        """What a reviewer should know; `id` is explained in docs/errors.md."""

    @property
    @abstractmethod
    def stamps(self) -> Sequence[str]:
        """Marks of the run, such as "fast"."""

    @property
    @abstractmethod
    def contrasts(self) -> Sequence[str]:
        """Names of the input images."""

    @property
    @abstractmethod
    def reference(self) -> str:
        """The image that defines the space of the case."""

    @property
    @abstractmethod
    def structures(self) -> Sequence[str]:
        """Names of all structures, margins last."""

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """Voxels of `labels`, `mask` and `probability`."""

    @property
    @abstractmethod
    def labels(self) -> npt.NDArray[Any]:
        """(X, Y, Z) the exclusive label map: tumor over anatomy."""

    @abstractmethod
    def labels_on(self, contrast: str) -> Image:
        """Label map on the voxels of an input image: `.data`, `.grid.affine`."""

    @abstractmethod
    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """(X, Y, Z) mask of a structure or margin; organs are not cut by tumor."""

    @abstractmethod
    def probability(self, name: str) -> npt.NDArray[Any]:
        """(X, Y, Z) fraction of the samples in which a voxel belongs to a structure; margins have none."""

    @abstractmethod
    def volume(self, name: str) -> Volume:
        """Volume in cm³: outlined, mean, sd and spread of the samples, interval if it is calibrated."""

    @abstractmethod
    def whole_tumor(self) -> Volume:
        """Volume of core and edema together; a KeyError if tumor was not segmented."""

    @abstractmethod
    def predicted(self, name: str) -> npt.NDArray[Any]:
        """(X, Y, Z) probability that an expert's structure contains a voxel; only if it is calibrated."""

    @abstractmethod
    def dvh(self, name: str, dose: Image | str | Path, *, fractions: int | None = None) -> Sampled:
        """Dose-volume histogram of a structure, and of its samples if they were kept.

        If the dose file is for one of several equal fractions, give their number as `fractions`.
        """

    @abstractmethod
    def to_rtstruct(self, reference: str | Path, path: str | Path, *, smooth: bool = False) -> None:
        """Write contours of all structures on the slices of a DICOM series."""

    @abstractmethod
    def report(self, path: str | Path) -> None:
        """Write the report, one page that opens offline."""

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a result folder as `tumoar segment` does."""

    @abstractmethod
    def _pictures(self) -> Sequence[dict[str, Any]]:
        """Slices for a notebook, without the face."""

    def __repr__(self) -> str:
        stamps = "".join(f", {text}" for text in self.stamps)
        lines = [
            f"{type(self).__name__}: {self.status}{stamps}",
            f"{', '.join(self.contrasts)} (reference {self.reference})",
        ]
        for name in self.structures:
            volume = self.volume(name)
            interval, what = interval_text(volume)
            shown = f"  ({what} {interval})" if interval else ""
            lines.append(f"{name:16} {volume.outlined:8.2f} cm³{shown}")
        lines += [f"note: {note}" for note in self.notes[:MOST_NOTES]]
        if len(self.notes) > MOST_NOTES:
            lines.append(f"and {len(self.notes) - MOST_NOTES} more notes")
        return "\n".join(line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…" for line in lines)

    def _repr_html_(self) -> str:
        volumes = {name: self.volume(name) for name in self.structures}
        return notebook_html(self.status, self.stamps, self.contrasts, volumes, self.notes, self._pictures())
