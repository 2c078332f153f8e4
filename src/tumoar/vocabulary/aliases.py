"""Map structure names used in clinics to TG-263 names.

Only unambiguous spellings are recognized (`data/aliases.toml`). The user can override the table. Two
structures are never mapped to the same name.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from tumoar.vocabulary.errors import UsageError, printable

SIDES = MappingProxyType({"left": "L", "right": "R"})
MOST_LETTERS = 64  # of a name; the limit of DICOM
MOST_SHOWN = 8  # names in a message

_LETTERS = str.maketrans({"œ": "oe", "æ": "ae", "ß": "ss"})
_SEPARATORS = re.compile(r"[\s._\-()\[\]]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def canonical_name(name: str) -> str | None:
    """The TG-263 name of a structure; None if it is unknown or ambiguous.

    A leading or trailing mark, as in "_Brain" or "Brain-", is not a separator: it has a meaning in TG-263.
    """
    text = name.strip()
    if not text or len(text) > MOST_LETTERS or text[0] in "_-." or text[-1] in "_-":
        return None
    words = _split_words(text)
    whole, sides = _table()
    if "".join(words) in whole:
        return whole["".join(words)]
    # Exactly one word for a side, first or last.
    at = [i for i, word in enumerate(words) if word in sides]
    if len(at) != 1 or at[0] not in (0, len(words) - 1):
        return None
    rest = "".join(word for i, word in enumerate(words) if i != at[0])
    return whole.get(f"{rest} {sides[words[at[0]]]}")


def parse_map(given: Sequence[str], known: Sequence[str] = ()) -> dict[str, str]:
    """Parse repeated `--map BRSTEM=Brainstem`: name in the file to TG-263 name, or to one of `known`."""
    ours = _known_names(known)
    out: dict[str, str] = {}
    for text in given:
        theirs, equals, name = (part.strip() for part in text.rpartition("="))
        if not equals or not theirs or not name:
            raise UsageError(
                "map", f"'{printable(text)}' is not a pair of names", do="write --map BRSTEM=Brainstem"
            )
        if name not in ours:
            raise UsageError("map", f"unknown structure '{printable(name)}'", do=f"use {', '.join(ours)}")
        if theirs in out:
            raise UsageError("map", f"'{printable(theirs)}' is mapped twice", do="give one --map for it")
        if name in out.values():
            raise UsageError("map", f"two structures are mapped to {name}", do="map one of them")
        out[theirs] = name
    return out


def rename(
    names: Sequence[str], given: Mapping[str, str], known: Sequence[str] = ()
) -> dict[str, str | None]:
    """Map each name of a file as `given`, else to itself or by its alias; None if unknown.

    Names in `known` are accepted in addition to TG-263 names. If `given` maps a structure to a name, aliases
    of that name are ignored.
    """
    absent = sorted(set(given) - set(names))
    if absent:
        raise UsageError(
            "map",
            f"no structure '{printable(absent[0])}' in the file",
            found=_join_names(sorted(set(names))),
            do="check the spelling; the name must match exactly",
        )
    own = {name.casefold(): name for name in _known_names(known)}
    out: dict[str, str | None] = {}
    for name in names:
        if name in out:
            raise _ambiguous(name, [name, name])
        exact = own.get(name.strip().casefold())
        alias = exact if exact == name else exact or canonical_name(name)
        is_taken = alias != name and alias in given.values()
        out[name] = given.get(name) or (None if is_taken else alias)
    for target in {v for v in out.values() if v is not None}:
        found = [name for name, new in out.items() if new == target]
        if len(found) > 1:
            raise _ambiguous(target, found)
    return out


def _known_names(known: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*_table()[0].values(), *known]))


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_SHOWN]) or "no structure"
    return f"{shown} and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else shown


def _ambiguous(target: str, found: Sequence[str]) -> UsageError:
    best = target if target in found else found[0]
    return UsageError(
        "map",
        f"{len(found)} structures match {printable(target)}",
        found=_join_names(found),
        do=f"choose one with --map '{printable(best)}={printable(target)}', or rename the others",
    )


def _split_words(name: str) -> list[str]:
    """Lowercase words without accents; camel case ("OpticNerveLeft") is split."""
    plain = unicodedata.normalize("NFKD", name.translate(_LETTERS))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return [w for w in _SEPARATORS.split(_HUMP.sub(" ", plain).casefold().translate(_LETTERS)) if w]


@cache
def _table() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Two maps: joined words of a spelling (plus " L" or " R" if sided) to TG-263 name; word to L or R."""
    text = files("tumoar").joinpath("data/aliases.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    sides = {word: SIDES[side] for side, words in table["sides"].items() for word in words}
    whole: dict[str, str] = {}
    for organ, spellings in table["whole"].items():
        whole |= {"".join(_split_words(s)): organ for s in (organ, *spellings)}
    for stem, spellings in table["sided"].items():
        for side in SIDES.values():
            whole |= {f"{''.join(_split_words(s))} {side}": f"{stem}_{side}" for s in (stem, *spellings)}
    return MappingProxyType(whole), MappingProxyType(sides)
