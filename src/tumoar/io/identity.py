"""Patient identity: compared in memory, stored with a result only as digests.

Values are compared as written, in Unicode form NFC and without padding. Differences that DICOM allows between
files of one patient are ignored: letter case of a name (consoles print capitals), trailing delimiters
(`DOE^JOHN^^^`), name groups that only one file has (alphabetic, ideographic, phonetic), a birth date written
`1941.03.13`, and empty values. IDs must match exactly.

When contours are drawn on another series, tumoar must recognize the patient of a result without the result
naming the patient. Its manifest therefore holds scrypt digests, salted with the key of the run, of the
patient ID and of each name group together with the birth date. A name cannot be read from them, but anyone
with a list of patients can try each entry: a manifest is pseudonymous, not anonymous.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from pydicom import Dataset
from pydicom.multival import MultiValue

from tumoar.vocabulary.errors import GeometryError

GROUPS = ("name", "ideographic", "phonetic")
FIELDS = ("id", *GROUPS, "birth", "sex")
Person = tuple[str, ...]  # in the order of FIELDS; empty if unknown

SEAL = "2"
"""Version of the digests: increased when the same patient yields other digests."""


def person_of(header: Dataset) -> Person:
    """Identity in a header, normalized for comparison; never shown."""
    birth = _text(header, "PatientBirthDate")
    if re.fullmatch(r"\d{4}\.\d\d\.\d\d", birth):  # as ACR-NEMA wrote dates
        birth = birth.replace(".", "")
    return (
        _text(header, "PatientID"),
        *_name_groups(_text(header, "PatientName")),
        birth,
        _text(header, "PatientSex").upper(),
    )


def _text(header: Dataset, keyword: str) -> str:
    value = header.get(keyword)
    parts = value if isinstance(value, MultiValue) else [value]
    return _composed("\\".join("" if part is None else str(part) for part in parts))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip(" \0\t\r\n")


def _name_groups(name: str) -> tuple[str, str, str]:
    """The three groups of a name, without letter case and trailing delimiters."""
    groups = [_caseless(group) for group in name.split("=", 2)]
    one, two, three = [*groups, "", ""][:3]
    return one, two, three


def _caseless(group: str) -> str:
    folded = unicodedata.normalize("NFD", group).casefold()
    return "^".join(_composed(part) for part in folded.split("^")).rstrip("^")


def is_same_person(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether all fields that both have agree."""
    return all(a == b for a, b in zip(one, other) if a and b)


def can_compare(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether both have an ID, or both a name; birth date and sex alone are not specific."""
    return any(a and b for field, a, b in zip(FIELDS, one, other) if field in ("id", *GROUPS))


def merge_people(people: Iterable[Sequence[str]]) -> Person:
    """Combine the identities in several images of one patient."""
    known = [p for p in people if p]
    return tuple(next((v for v in values if v), "") for values in zip(*known))


# ---- digests -----------------------------------------------------------------------------------------------


def seal_identity(person: Sequence[str], salt: str) -> dict[str, str]:
    """Digests of the known fields, to recognize a patient by."""
    known = {field: value for field, value in zip(FIELDS, person) if value}
    birth = known.get("birth", "")
    texts = {"id": known.get("id", "")}
    texts |= {group: f"{known[group]}\n{birth}" for group in GROUPS if group in known and birth}
    digests = {field: _digest(f"{field}\n{text}", salt) for field, text in texts.items() if text}
    return {"v": SEAL, **digests} if digests else {}


def require_patient(seal: Mapping[str, str], salt: str, person: Sequence[str], what: str) -> bool:
    """Refuse files of another patient than the result's; return False if identity could not be compared."""
    version = seal.get("v", "1")
    if version == "1":
        theirs = _sealed_before(person, salt) if seal else {}
    else:
        theirs = {k: {v} for k, v in seal_identity(person, salt).items()} if version == SEAL else {}
    common = (seal.keys() & theirs.keys()) - {"v"}
    if any(seal[field] not in theirs[field] for field in common):
        raise GeometryError(
            "B34", f"{what} and the result are from different patients", do="give images of one patient"
        )
    return version == SEAL and bool(common)


def _sealed_before(person: Sequence[str], salt: str) -> dict[str, set[str]]:
    """Digests that version 1 may have written for this patient.

    It kept only letters and digits, so that a match proves nothing (P-1.12, P-11.2); a mismatch still does,
    whichever normal form the name was in.
    """
    if not person:
        return {}
    number, *groups, birth, _ = person
    ids = {f"id {text}" for text in _letters(number)}
    names = {f"name {text} {birth}" for name in ("".join(groups), groups[0]) for text in _letters(name)}
    texts = {"id": ids, "name": names if birth else set()}
    return {field: {_digest(text, salt) for text in found} for field, found in texts.items() if found}


def _letters(text: str) -> set[str]:
    """Letters and digits only, of the composed and the decomposed form."""
    forms = (unicodedata.normalize(form, text).casefold() for form in ("NFC", "NFD"))
    return {"".join(c for c in form if c.isalnum()) for form in forms} - {""}


def _digest(text: str, salt: str) -> str:
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16).hex()
