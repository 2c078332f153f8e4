"""Guess the contrast of a series from its timing, contrast agent and description; used in tables only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydicom import Dataset

WORDS = {
    "localizer": r"loc(alizer|aliser)?|scout|survey|topogram",
    "diffusion": r"dwi|dti|diff\w*|adc|trace\w*|ep2d",
    "perfusion": r"perf\w*|dsc|dce|asl|cbf|cbv",
    "susceptibility": r"swi|swan|t2star|hemo|gre",
    "angiography": r"tof|mra|angio\w*",
    "FLAIR": r"flair|tirm|dark.?fluid",
    "DIR": r"dir",
    "T2": r"t2w?",
    "T1": r"t1w?|mprage|mp.?rage|bravo|spgr|tfe|flash|vibe",
}
"""Words in descriptions by contrast; the first match wins, because a FLAIR may also say T2."""

ENHANCED = r"gd|gad\w*|ce|post|km|contrast|\+c|t1c|t1ce"
PLAIN = r"pre|native|nativ|ohne|without|no"


@dataclass(frozen=True)
class Guess:
    """A contrast and the confidence in it, 0 to 1."""

    contrast: str
    confidence: float

    @property
    def text(self) -> str:
        """Text for a table."""
        return f"{self.contrast} {100 * self.confidence:.0f} %"


def guess_contrast(header: Dataset) -> Guess:
    """Guess from timing and words: confidence is high if both agree, low if they do not."""
    if str(header.SOPClassUID).startswith("1.2.840.10008.5.1.4.1.1.2"):
        is_scout = "LOCALIZER" in [str(v).upper() for v in header.get("ImageType") or []]
        return Guess("localizer" if is_scout else "CT", 0.98)
    words = _words(header)
    told = next((name for name, pattern in WORDS.items() if _says(words, pattern)), None)
    timed = _by_timing(header)
    if told is None and timed is None:
        return Guess("other", 0.2)
    if told is not None and told not in ("FLAIR", "DIR", "T2", "T1"):
        return Guess(told, 0.8)
    confidence = 0.95 if told == timed else 0.7 if told is None or timed is None else 0.4
    base = told or timed or "other"
    if base != "T1":
        return Guess(base, confidence)
    agent = bool(str(header.get("ContrastBolusAgent") or "").strip())
    enhanced, plain = agent or _says(words, ENHANCED), _says(words, PLAIN)
    if enhanced and not plain:
        return Guess("T1c", confidence if agent else 0.9 * confidence)
    return Guess("T1", confidence if plain and not enhanced else 0.8 * confidence)


def _by_timing(header: Dataset) -> str | None:
    """Contrast from echo, repetition and inversion times in ms."""
    echo, repetition, inversion = (
        _milliseconds(header, k) for k in ("EchoTime", "RepetitionTime", "InversionTime")
    )
    if echo is None or repetition is None:
        return None
    if inversion is not None and inversion > 1400 and repetition > 3500:
        return "FLAIR"
    if echo >= 60 and repetition >= 2000 and not inversion:
        return "T2"
    if echo <= 30 and (repetition <= 1200 or (inversion is not None and 500 <= inversion <= 1300)):
        return "T1"
    return None


def _milliseconds(header: Dataset, keyword: str) -> float | None:
    try:
        return float(header[keyword].value)
    except (KeyError, TypeError, ValueError):
        return None


def _words(header: Dataset) -> str:
    text = " ".join(str(header.get(k) or "") for k in ("SeriesDescription", "ProtocolName", "SequenceName"))
    return re.sub(r"[^a-z0-9+]+", " ", text[:500].casefold())


def _says(words: str, pattern: str) -> bool:
    return re.search(rf"(?:^| )(?:{pattern})(?: |$)", words) is not None
