"""Shared by RTSTRUCT and DICOM-SEG files: structures on the voxels of a series, patient and study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
from pydicom import Dataset
from pydicom.uid import generate_uid

from tumoar.vocabulary.labels import Code, LabelTable, Organ

UNIDENTIFIED = "; patient identity not checked"
"""Added to a description; descriptions have at most 64 characters."""
MANUFACTURER = "tumoar"
STUDY = (
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyInstanceUID",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
)
"""Attributes copied from the series, to link the file to its patient and study; nothing else is copied."""


@dataclass(frozen=True)
class Review:
    """What a person did with outlines: structures that were corrected, and who approved all of them and when.

    `reviewer` are initials, empty if nobody approved; `date` and `time` are in DICOM format.
    """

    corrected: frozenset[str] = frozenset()
    reviewer: str = ""
    date: str = ""
    time: str = ""

    @property
    def label(self) -> str:
        """Label of a structure set, at most 16 characters."""
        if self.reviewer:
            return "APPROVED"
        return "UNAPPROVED" if self.corrected else "AUTO-UNREVIEWED"

    @property
    def description(self) -> str:
        """What the outlines are."""
        made = "automatic, corrected" if self.corrected else "automatic"
        if self.reviewer:
            return f"{made}, approved"
        return f"{made}, not approved" if self.corrected else "automatic, unreviewed"

    def describe(self, name: str) -> str:
        """What the outline of one structure is."""
        return (self if name in self.corrected else replace(self, corrected=frozenset())).description

    def algorithm(self, name: str) -> str:
        """How the outline of a structure was made."""
        return "SEMIAUTOMATIC" if name in self.corrected else "AUTOMATIC"


NOT_REVIEWED = Review()


@dataclass(frozen=True, eq=False)
class Roi:
    """A structure by its TG-263 name, on the voxels [column, row, slice] of a series."""

    name: str
    kind: str
    color: str
    mask: npt.NDArray[np.bool_]
    code: Code | None = None
    made_of: str = ""
    interval: str = ""  # of its volume, and what it is

    @property
    def rgb(self) -> list[int]:
        """Color as three bytes."""
        return [int(self.color[i : i + 2], 16) for i in (1, 3, 5)]


def look_of(table: LabelTable, organ: Organ) -> tuple[str, Code | None]:
    """Color and SNOMED code of an organ: those of its parts, or of the brain where these differ."""
    if organ.kind == "GTV":
        return look_of_target(table)
    rows = [table.structures[table.l(s)] for s in organ.structures]
    rows += [t for t in table.tumor if t.name in organ.tumor]  # type: ignore[misc]
    codes = {row.snomed for row in rows}
    if len(codes) == 1:
        return rows[0].color, rows[0].snomed
    return rows[0].color, Code("12738006", "Brain")


def look_of_target(table: LabelTable) -> tuple[str, Code | None]:
    """Color and SNOMED code of a margin around the tumor: those of the core."""
    core = next(t for t in table.tumor if t.name == "core")
    return core.color, core.snomed


def code_item(code: Code) -> Dataset:
    """A SNOMED concept as an item of a code sequence."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code.value, "SCT", code.meaning
    return item


def uid(*parts: str) -> str:
    """UID derived from the content: the same result on the same series has the same UID."""
    return str(generate_uid(entropy_srcs=list(parts)))


def of_study(header: Dataset) -> dict[str, object]:
    """Patient and study attributes of a header; absent ones stay empty."""
    return {keyword: header[keyword].value if keyword in header else "" for keyword in STUDY}


def now() -> tuple[str, str]:
    """Current date and time in DICOM format."""
    at = datetime.now()
    return at.strftime("%Y%m%d"), at.strftime("%H%M%S")
