"""What a cohort shows to others without what only its owner should see: names of files and folders.

File names are given by people and often hold a patient's name. In logs, records and summaries an image is
called by its contrast, any other file is not named, and paths are left out.
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
"""Files that we have named, and that may be named."""
SHORTEST = 4
"""Letters of a name that is looked for in a text; a shorter one would be found in ordinary words."""
_REFUSAL = re.compile(r"(?P<begin>E\d+-\S+ .*)")
_QUOTED = re.compile(r"(?P<quote>[\"'])/.*?(?P=quote)")
_PATH = re.compile(r"(?<![\w./<)])/[^\s/|]+(?:/[^\s|]*)?|\(path\)/[^\s|]*")


def without_names(text: str, subject: Subject) -> str:
    """One line of a log, or a refusal, as others may see it."""
    text = printable(text)
    if _REFUSAL.fullmatch(text):
        parts = [_file(part, subject) for part in text.split(" | ")]
        text = " | ".join(part for part in parts if part)
    text = _QUOTED.sub(r"\g<quote>(path)\g<quote>", text)
    for found, neutral in sorted(_known(subject), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<!\w){re.escape(found)}(?!\w)", neutral.replace("\\", ""), text)
    return _PATH.sub("(path)", text)


def _file(part: str, subject: Subject) -> str:
    """The part of a refusal that names a file: by contrast, or not at all."""
    name = part.removeprefix("file: ")
    if name == part or name in (*OWN, *(f"the {contrast}" for contrast in subject.images)):
        return part
    contrast = next((c for c, image in subject.images.items() if plain_name(image) == name), None)
    return f"file: the {contrast}" if contrast else ""


def _known(subject: Subject) -> Iterator[tuple[str, str]]:
    """Names of a subject's images and folders, plain and as JSON writes them, and what to call them."""
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
