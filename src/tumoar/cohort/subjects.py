"""Find the subjects and sessions of a BIDS dataset, and the contrast of each image."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tumoar.cohort.names import case_name, label_of
from tumoar.io.files import read_text
from tumoar.vocabulary.contrasts import Contrast, default_contrasts
from tumoar.vocabulary.errors import ChannelError, GeometryError, TumoarError, UnreadableFileError, UsageError
from tumoar.vocabulary.notes import Note

Suffixes = Mapping[tuple[str, bool], str]
FOLDERS = ("anat", "ct")
_NIFTI = re.compile(r"(?P<entities>(?:[a-zA-Z0-9]+-[a-zA-Z0-9+]+_)+)(?P<suffix>[a-zA-Z0-9]+)\.nii(?:\.gz)?")


@dataclass(frozen=True)
class Subject:
    """One patient or session: images by contrast, and the reason if it cannot be run."""

    label: str
    session: str = ""
    images: dict[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    code: int = 0
    problem: str = ""

    @property
    def name(self) -> str:
        """Prefix of its files."""
        return case_name(self.label, self.session)


@dataclass(frozen=True)
class Scan:
    """An image of a dataset, described by its file name."""

    path: Path
    contrast: str
    entities: dict[str, str]

    @property
    def kind(self) -> dict[str, str]:
        """Entities that distinguish it from others of its contrast, except the run."""
        return {k: v for k, v in self.entities.items() if k not in ("sub", "ses", "ce", "run")}

    @property
    def run(self) -> int:
        """Run number, 0 if absent."""
        digits = re.sub("[^0-9]", "", self.entities.get("run", ""))
        return int(digits) if digits else 0


def find_subjects(
    root: Path, prefer: Sequence[str] = (), contrasts: Mapping[str, Contrast] | None = None
) -> list[Subject]:
    """Find all subjects of a BIDS dataset, sorted by name; `prefer` are entities such as "acq-mprage"."""
    suffixes = suffixes_of(default_contrasts() if contrasts is None else contrasts)
    for text in prefer:
        if not re.fullmatch("[a-z]+-[A-Za-z0-9+]+", text):
            raise UsageError("prefer", "entities are written key-value", found=text, do="write acq-mprage")
    try:
        folders = sorted(p for p in root.iterdir() if p.name.startswith("sub-") and p.is_dir())
    except OSError as error:
        raise UnreadableFileError("B1", "cannot read the dataset", file=root) from error
    if not folders:
        raise UsageError(
            "B61", "no subjects found", file=root, do="give a BIDS dataset (folders sub-…) or a list"
        )
    out = []
    for folder in folders:
        try:
            sessions = sorted(p for p in folder.iterdir() if p.name.startswith("ses-") and p.is_dir())
            places = [p for p in (folder, *sessions) if _scans(p, suffixes)] or [folder]
            out += [_subject(folder, place, prefer, suffixes) for place in places]
        except OSError:
            refusal = UnreadableFileError("B1", "cannot read the subject's folder")
            out.append(_refused(label_of(folder.name), refusal))
    require_unique(out)
    absent = UnreadableFileError("B1", "listed in participants.tsv, but has no folder")
    known = {s.label.lower() for s in out}
    for label in _participants(root):
        if label.lower() not in known:
            known.add(label.lower())
            out.append(_refused(label, absent))
    return out


def suffixes_of(contrasts: Mapping[str, Contrast]) -> Suffixes:
    """Contrasts by BIDS suffix and presence of a contrast agent (ce-)."""
    return {(suffix, c.agent): c.name for c in contrasts.values() for suffix in c.bids}


def require_unique(subjects: Sequence[Subject]) -> None:
    """Refuse repeated names, regardless of letter case, which some disks ignore."""
    seen: set[str] = set()
    for subject in subjects:
        name = subject.name.lower()
        if name in seen:
            raise UsageError("B61", f"{subject.name} appears twice", do="give every subject its own name")
        seen.add(name)


def choose(scans: Sequence[Scan], prefer: Sequence[str]) -> tuple[Scan, Note | None]:
    """Choose one of several images of a contrast and note the choice; refuse to guess."""
    wanted = [s for s in scans if all(s.entities.get(p.split("-")[0]) == p.split("-")[1] for p in prefer)]
    ranked = sorted(wanted or scans, key=lambda s: (len(s.kind), s.run))
    first = ranked[0]
    rivals = [s for s in ranked[1:] if len(s.kind) == len(first.kind) and s.kind != first.kind]
    if rivals:
        named = sorted({"_".join(f"{k}-{v}" for k, v in s.kind.items()) for s in (first, *rivals)})
        raise ChannelError(
            "B46",
            f"{len(scans)} images could be the {first.contrast}",
            found=", ".join(named),
            do=f"choose with --prefer {named[0].split('_')[0]}",
        )
    if len(scans) == 1:
        return first, None
    taken = "_".join(f"{k}-{v}" for k, v in first.entities.items() if k not in ("sub", "ses")) or "plainest"
    return first, Note("B46", f"{len(scans)} images, {taken} used", level="info", where=first.contrast)


def _subject(folder: Path, place: Path, prefer: Sequence[str], suffixes: Suffixes) -> Subject:
    own = {"sub": folder.name[4:]} | ({"ses": place.name[4:]} if place != folder else {})
    label, session = label_of(own["sub"]), label_of(own["ses"], "session") if "ses" in own else ""
    try:
        images, notes = {}, []
        scans = _scans(place, suffixes)
        for scan in scans:
            if {k: v for k, v in scan.entities.items() if k in ("sub", "ses")} != own:
                raise GeometryError(
                    "B34",
                    "an image is named for another subject",
                    file=scan.path,
                    do="move it to its subject",
                )
        for contrast in dict.fromkeys(s.contrast for s in scans):
            scan, note = choose([s for s in scans if s.contrast == contrast], prefer)
            if not scan.path.exists():
                raise UnreadableFileError(
                    "B1", "broken link", file=scan.path, do="fetch the content (datalad get)"
                )
            images[contrast] = str(scan.path.absolute())
            notes += [note] if note else []
        if not images:
            endings = ", ".join(dict.fromkeys(suffix for suffix, _ in suffixes))
            raise UnreadableFileError("B1", "no image found", do=f"names end in {endings}")
    except TumoarError as refusal:
        return _refused(label, refusal, session)
    return Subject(label, session, images, tuple(notes))


def _refused(label: str, refusal: TumoarError, session: str = "") -> Subject:
    return Subject(label, session, code=refusal.exit_code, problem=str(refusal))


def _scans(place: Path, suffixes: Suffixes) -> list[Scan]:
    """Images of known contrasts, sorted by name, except parts of complex images and single echoes."""
    names = list(suffixes.values())
    return sorted(_named(place, suffixes), key=lambda s: (names.index(s.contrast), s.path.name))


def _named(place: Path, suffixes: Suffixes) -> Iterator[Scan]:
    for folder in FOLDERS:
        if not (place / folder).is_dir():
            continue
        for entry in os.scandir(place / folder):
            match = _NIFTI.fullmatch(entry.name)
            if match is None:
                continue
            entities = dict(part.split("-", 1) for part in match["entities"].rstrip("_").split("_"))
            contrast = suffixes.get((match["suffix"], "ce" in entities))
            if contrast and entities.get("part", "mag") == "mag" and "echo" not in entities:
                yield Scan(Path(entry.path), contrast, entities)


def _participants(root: Path) -> list[str]:
    """Labels in participants.tsv, if it exists."""
    try:
        lines = read_text(root / "participants.tsv", "the list of participants").splitlines()
    except TumoarError:
        return []
    if not lines or lines[0].split("\t")[0] != "participant_id":
        return []
    return [label_of(line.split("\t")[0]) for line in lines[1:] if line.strip()]
