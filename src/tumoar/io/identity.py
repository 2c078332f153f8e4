"""Whose images they are: compared in memory, and kept with a result only as digests.

A result must be recognized as a patient's when contours are drawn on another series, and must not say who it
is. Its manifest therefore holds two digests by scrypt, salted with the key of the run: of the patient's ID,
and of name and birth date together. Nobody can read a name from them; whoever has a list of patients can
try them one after another, so that a manifest is pseudonymous, not anonymous.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from pydicom import Dataset

from tumoar.errors import GeometryError

PERSON = ("PatientID", "PatientName", "PatientBirthDate", "PatientSex")
Person = tuple[str, ...]  # in the order of PERSON, or empty where nothing is told


def person_of(header: Dataset) -> Person:
    """Letters and digits of what a header tells of its patient; never shown."""
    values = (str(header.get(keyword) or "").casefold() for keyword in PERSON)
    return tuple("".join(c for c in value if c.isalnum()) for value in values)


def same_person(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether no field that both tell contradicts."""
    return all(a == b for a, b in zip(one, other) if a and b)


def merged(people: Iterable[Sequence[str]]) -> Person:
    """What several images of one patient tell together."""
    known = [p for p in people if p]
    return tuple(next((v for v in values if v), "") for values in zip(*known))


def sealed(person: Sequence[str], salt: str) -> dict[str, str]:
    """Digests to recognize a patient by; none of what is not told."""
    if not person:
        return {}
    number, name, birth = person[:3]
    told = {"id": number, "name": f"{name} {birth}" if name and birth else ""}
    return {field: _digest(f"{field} {value}", salt) for field, value in told.items() if value}


def require_patient(seal: Mapping[str, str], salt: str, person: Sequence[str], what: str) -> None:
    """Refuse what is of another patient than the result's images, as far as both tell."""
    theirs = sealed(person, salt) if seal else {}
    if any(seal[field] != theirs[field] for field in seal.keys() & theirs.keys()):
        raise GeometryError(
            "B34", f"{what} and the result are from different patients", do="give images of one patient"
        )


def _digest(text: str, salt: str) -> str:
    return hashlib.scrypt(text.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16).hex()
