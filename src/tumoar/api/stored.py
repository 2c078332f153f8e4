"""A result read from a folder, as `tumoar.load_result` returns it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tumoar.api.result import Result
from tumoar.geometry.image import Image
from tumoar.io.dose import GivenDose, load_dose, require_dose
from tumoar.io.files import absolute
from tumoar.io.identity import require_patient
from tumoar.io.images import series_at
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.radiotherapy.dvh import Sampled
from tumoar.radiotherapy.export import is_identity_checked, rois_on
from tumoar.radiotherapy.structures import measure_doses
from tumoar.report import read_page, render
from tumoar.result import stored
from tumoar.result.folder import REPORT, read_manifest, replace_text
from tumoar.result.masks import require_listed
from tumoar.vocabulary.errors import TumoarError


class StoredResult(stored.Stored, Result):
    """A result on disk, on the voxels of its reference image."""

    def report(self, path: str | Path) -> None:
        """Write the report, one page that opens offline, rendered from the data of the stored page."""
        replace_text(Path(path), render(self._page()))

    def dvh(self, name: str, dose: Image | str | Path, *, fractions: int | None = None) -> Sampled:
        """Dose-volume histogram of a structure, and of its samples if they were saved.

        If the dose file is for one of several equal fractions, give their number as `fractions`. The notes
        say if the patient could not be compared.
        """
        name = self._known(name)
        if isinstance(dose, Image):
            require_dose(dose)
            given = GivenDose(dose)
        else:
            given = load_dose(dose, fractions=fractions)
        found = measure_doses(self.folder, given.image, given.person, only=name)
        doubts = tuple(dict.fromkeys(doubt for doubt in (given.doubt, found.doubt) if doubt))
        is_file = not isinstance(dose, Image)
        return replace(found.structures[0].found, notes=(*given.notes, *(doubts if is_file else ())))

    def to_rtstruct(self, reference: str | Path, path: str | Path, *, smooth: bool = False) -> None:
        """Write contours of all structures on the slices of a series in the space of the result."""
        series, manifest = series_at(reference), read_manifest(self.folder)
        key = manifest.get("key", "")
        require_patient(manifest.get("patient", {}), key, series.person, "the series")
        is_checked = is_identity_checked(manifest, series)
        rois = rois_on(self.folder, manifest, series)
        write_rtstruct(path, rois, series, smooth=smooth, key=key, is_checked=is_checked)

    def _page(self) -> dict[str, Any]:
        return read_page(require_listed(self.folder, self.manifest, REPORT))

    def _pictures(self) -> list[dict[str, Any]]:
        """Pictures of the report; none if they show the whole head."""
        try:
            page = self._page()
        except TumoarError:
            return []
        shows_face = page["whole"] and not self.manifest.get("skull_stripped", False)
        return [] if shows_face else list(page["pictures"])


def load_result(folder: str | Path) -> StoredResult:
    """Load a finished result of `tumoar segment` and check every file against its manifest."""
    place = absolute(folder)
    return StoredResult(place, read_manifest(place))
