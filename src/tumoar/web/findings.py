"""What images are taken for: `tumoar inspect` in its own process, and what file names say."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tumoar.vocabulary.contrasts import default_contrasts
from tumoar.vocabulary.errors import ResourceError, UnreadableFileError, UsageError

PATIENCE = 600  # seconds
SPELLINGS = {
    "t1ce": "T1c",
    "t1gd": "T1c",
    "t1post": "T1c",
    "t1w": "T1",
    "t2w": "T2",
    "t2f": "FLAIR",
    "t1n": "T1",
}
"""Further spellings of contrasts in file names, as in public collections."""
NOT_USED = ""


@dataclass(frozen=True)
class Findings:
    """Images in a folder; `paths` by row, for the server only."""

    rows: tuple[dict[str, Any], ...]
    paths: tuple[str, ...]


class Inspector:
    """Inspects folders, and remembers what it found, by a random identifier."""

    def __init__(self) -> None:
        self._known: dict[str, Findings] = {}

    def inspect(self, place: Path, names: Mapping[str, str]) -> dict[str, Any]:
        """Describe all images of a folder, or one file; `names` are those that the user knows."""
        findings = inspect(place, names)
        key = secrets.token_hex(8)
        self._known[key] = findings
        contrasts = [name for name in default_contrasts() if name != "FLAIR2"]
        return {"found": key, "images": list(findings.rows), "contrasts": contrasts}

    def images(self, key: str, chosen: Mapping[int, str]) -> dict[str, str]:
        """Paths by contrast for the chosen rows."""
        if key not in self._known:
            raise UsageError("images", "no such images", do="choose the files again")
        findings, out = self._known[key], {}
        for row, contrast in chosen.items():
            if not 0 <= row < len(findings.paths) or contrast not in default_contrasts():
                raise UsageError("images", "no such image or contrast", do="choose them from the list")
            if contrast in out:
                raise UsageError("images", f"{contrast} is given twice", do="choose one image for it")
            out[contrast] = findings.paths[row]
        return out


def inspect(place: Path, names: Mapping[str, str]) -> Findings:
    """Run `tumoar inspect` on a folder or a file."""
    words = [sys.executable, "-m", "tumoar.cli.child", "inspect", str(place), "--json"]
    ours, theirs = os.pipe()  # open until the process has ended: it ends with us
    try:
        done = subprocess.run(words, stdin=ours, capture_output=True, timeout=PATIENCE, check=False)
        images = json.loads(done.stdout)["images"]
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            "time", "looking at the images takes too long", do="choose fewer files"
        ) from error
    except (ValueError, KeyError) as error:
        raise UnreadableFileError(
            "B1", "no images found", do="choose NIfTI files or a DICOM folder"
        ) from error
    finally:
        os.close(ours)
        os.close(theirs)
    rows, paths = [], []
    for image in images:
        file = str(image["file"])
        series = re.match(r"#\d+ ", file) if "contrast_guess" in image else None
        paths.append(
            f"{place}{series[0].strip()}" if series else str(place / file if place.is_dir() else place)
        )
        shown = file if series else names.get(file, file)
        guess = image.get("contrast_guess") or guess_contrast(shown)
        rows.append(
            {
                "name": shown,
                "shape": image.get("shape"),
                "spacing": image.get("spacing_mm"),
                "looks_like": image.get("looks_like", ""),
                "guess": guess if guess in default_contrasts() else NOT_USED,
                "confidence": image.get("confidence"),
                "notes": [note["text"] for note in image.get("notes", ())],
                "refused": (image.get("refused") or {}).get("text", ""),
            }
        )
    return Findings(tuple(rows), tuple(paths))


def guess_contrast(name: str) -> str:
    """Contrast by a file name that contains it as a word; empty if none or several do."""
    known = {contrast.lower(): contrast for contrast in default_contrasts()} | SPELLINGS
    words = re.split(r"[^a-z0-9]+", name.lower())
    found = {known[word] for word in words if word in known}
    return found.pop() if len(found) == 1 else NOT_USED
