"""Remove names of files and folders from everything that a cohort shows to others.

File names often contain a patient's name. In logs, records and summaries, images are named by their contrast;
other file names and paths are omitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tumoar.cohort.subjects import Subject
from tumoar.io.manifest import MANIFEST, REPORT
from tumoar.vocabulary.errors import plain_name, printable

OWN = (MANIFEST, REPORT)
"""Names of our own files, which may be shown."""
SHORTEST = 4
"""Minimum length of a name to search for; shorter ones occur in ordinary words."""
_REFUSAL = re.compile(r"(?P<begin>E\d+-\S+ .*)")
_QUOTED = re.compile(r"(?P<quote>[\"'])/.*?(?P=quote)")
_PATH = re.compile(r"(?<![\w./<)])/[^\s/|]+(?:/[^\s|]*)?|\(path\)/[^\s|]*")


def remove_names(text: str, subject: Subject) -> str:
    """Remove names from a line of a log, or from a refusal."""
    text = printable(text)
    if _REFUSAL.fullmatch(text):
        parts = [_file(part, subject) for part in text.split(" | ")]
        text = " | ".join(part for part in parts if part)
    text = _QUOTED.sub(r"\g<quote>(path)\g<quote>", text)
    for found, neutral in sorted(_known(subject), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<!\w){re.escape(found)}(?!\w)", neutral.replace("\\", ""), text)
    return _PATH.sub("(path)", text)


def _file(part: str, subject: Subject) -> str:
    """File part of a refusal: named by contrast, or omitted."""
    name = part.removeprefix("file: ")
    if name == part or name in (*OWN, *(f"the {contrast}" for contrast in subject.images)):
        return part
    contrast = next((c for c, image in subject.images.items() if plain_name(image) == name), None)
    return f"file: the {contrast}" if contrast else ""


def _known(subject: Subject) -> Iterator[tuple[str, str]]:
    """Names of a subject's images and folders, plain and as in JSON, and their replacements."""
    for contrast, image in subject.images.items():
        path = Path(image)
        folders = [str(p) for p in path.parents if p != Path(path.anchor)]
        neutral = {image: f"the {contrast}", path.name: f"the {contrast}", _stem(path): f"the {contrast}"}
        for name, word in (dict.fromkeys(folders, "(path)") | neutral).items():
            if len(name) < SHORTEST or name.lower() == contrast.lower():
                continue
            yield from ((form, word) for form in {printable(name), json.dumps(name)[1:-1]})


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]
