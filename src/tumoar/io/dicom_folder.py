"""Find the slices in a folder; no file that may be a slice is skipped silently.

Other files of a study (DICOMDIR, text, thumbnails, files of the file manager) are skipped. A file is refused
if it has the DICOM magic or the suffix .dcm or .ima and cannot be read. In a directory with slices, a file is
also refused if it is not DICOM but is named like the slices (the same suffix, or the same name except for
numbers), is empty or zeroed, or cannot be opened.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydicom import Dataset

from tumoar.io.dicom_file import MOST_BYTES, is_marked, open_dicom, parse_dicom, refusing
from tumoar.io.files import open_file
from tumoar.vocabulary.errors import ResourceError, TumoarError, UnreadableFileError
from tumoar.vocabulary.notes import Note

CLASSES = {
    "1.2.840.10008.5.1.4.1.1.2": "CT",
    "1.2.840.10008.5.1.4.1.1.2.1": "CT",
    "1.2.840.10008.5.1.4.1.1.2.2": "CT",
    "1.2.840.10008.5.1.4.1.1.4": "MR",
    "1.2.840.10008.5.1.4.1.1.4.1": "MR",
    "1.2.840.10008.5.1.4.1.1.4.4": "MR",
}
"""Images by SOP class: plain, enhanced, and converted to enhanced."""

MOST_FILES = 20_000
COMPLETE = "check that the series is complete"
START = 4096  # bytes; a failed copy leaves only zeros
OF_DICOM = (".dcm", ".ima")
EXPORT_AGAIN = "export the series again, or move other files elsewhere"


@dataclass(frozen=True, eq=False)
class _Look:
    """A file: its data set, or the reason why there is none."""

    path: Path
    data: Dataset | None = None
    refusal: TumoarError | None = None
    is_marked: bool = False
    is_blank: bool = False

    @property
    def is_slice(self) -> bool:
        return self.data is not None and str(self.data.SOPClassUID) in CLASSES

    @property
    def is_surely_dicom(self) -> bool:
        return self.is_marked or (_suffix(self.path) in OF_DICOM and not self.path.name.startswith("."))


def slices_in(folder: Path) -> list[tuple[Path, Dataset]]:
    """CT and MR images below a folder, without pixel data, sorted by file name."""
    looks = [_look(path) for path in _files(folder)]
    by_folder: dict[Path, list[_Look]] = defaultdict(list)
    for look in looks:
        by_folder[look.path.parent].append(look)
    found = [look for members in by_folder.values() for look in _find_unreadable(members)]
    _require_none(sorted((look for look in found if look.refusal), key=lambda look: look.path))
    slices = [look for look in (*looks, *found) if look.is_slice]
    return [(look.path, look.data) for look in sorted(slices, key=lambda s: s.path) if look.data is not None]


def _files(folder: Path) -> list[Path]:
    """All files below a folder; links to directories are not followed."""

    def refuse(error: OSError) -> None:
        raise UnreadableFileError(
            "B1", "cannot read part of the folder", file=error.filename, do="check its permissions"
        ) from error

    paths: list[Path] = []
    for place, _, names in os.walk(folder, onerror=refuse):
        paths += [Path(place, name) for name in names if not name.casefold().startswith("dicomdir")]
        if len(paths) > MOST_FILES:
            raise ResourceError("files", f"more than {MOST_FILES} files in this folder", do="give one study")
    return sorted(paths)


def _look(path: Path) -> _Look:
    marked = blank = False
    try:
        with refusing(path), open_file(path, "the DICOM file", MOST_BYTES) as file:
            start = file.read(START)
            marked, blank = is_marked(start), not any(start)
            if not marked and _suffix(path) not in ("", *OF_DICOM):
                return _Look(path)
            return _Look(path, parse_dicom(file, path.name, pixels=False), None, marked)
    except TumoarError as refusal:
        return _Look(path, None, refusal, marked, blank or refusal.id == "B2")


def _find_unreadable(looks: Sequence[_Look]) -> Iterator[_Look]:
    """Files of one directory that may be slices but cannot be read, and slices recognized only by name."""
    slices = [look for look in looks if look.is_slice]
    suffixes, names = {_suffix(s.path) for s in slices}, {_pattern(s.path) for s in slices}
    for look in looks:
        suffix = _suffix(look.path)
        if look.data is not None:
            continue
        if look.is_surely_dicom:
            yield look
        elif not slices or look.path.name.startswith("."):
            continue
        elif suffix:
            if suffix in suffixes:  # a slice may lack the DICOM magic
                yield _read(look.path)
        elif look.is_blank or _pattern(look.path) in names or (look.refusal and look.refusal.id == "B1"):
            yield look


def _read(path: Path) -> _Look:
    try:
        return _Look(path, open_dicom(path, pixels=False))
    except TumoarError as refusal:
        return _Look(path, None, refusal)


def _require_none(unreadable: Sequence[_Look]) -> None:
    if not unreadable or unreadable[0].refusal is None:
        return
    first, many = unreadable[0].refusal, len(unreadable)
    if many == 1:
        raise first
    raise type(first)(
        first.id,
        f"{many} files among the slices cannot be read",
        file=unreadable[0].path,
        found=f"{first.what}, and {many - 1} more",
        do=EXPORT_AGAIN,
    )


def _suffix(path: Path) -> str:
    """The suffix in lower case; empty if it is a number, as in IM.0007 and in UIDs."""
    suffix = path.suffix.lower()
    return "" if re.fullmatch(r"\.[0-9a-f]*\d[0-9a-f]*", suffix) else suffix


def _pattern(path: Path) -> str:
    """The name with every decimal or hexadecimal number replaced by one character."""
    return re.sub(r"#(\.#)+", "#", re.sub(r"(?=[a-f]*\d)[0-9a-f]+", "#", path.name.lower()))


# ---- completeness ------------------------------------------------------------------------------------------


def note_gaps(headers: Sequence[Dataset]) -> tuple[Note, ...]:
    """Note images that the headers of one series count but the folder lacks.

    If slices are missing at an end, the stack is still even, and only counters reveal it: Images in
    Acquisition, and Instance Number unless it increases in larger steps, as in parts of a longer series.
    """
    count = len(headers)
    told = {_whole(h, "ImagesInAcquisition") for h in headers}
    claimed = told.pop() if len(told) == 1 else None
    if claimed is not None and count < claimed <= MOST_FILES and count > 1:
        return (Note("B45", f"{count} slices found, but the acquisition has {claimed}", action=COMPLETE),)
    numbers = sorted({n for h in headers if (n := _whole(h, "InstanceNumber")) is not None})
    if len(numbers) < count or count < 3 or min(b - a for a, b in pairwise(numbers)) > 1:
        return ()
    lacking = numbers[-1] + (numbers[0] == 0) - count
    if 0 < lacking <= count:  # more: numbering does not start at one
        text = f"slice numbers run from {numbers[0]} to {numbers[-1]}, but {count} slices were found"
        return (Note("B45", text, action=COMPLETE),)
    return ()


def _whole(header: Dataset, keyword: str) -> int | None:
    try:
        return int(header[keyword].value)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
