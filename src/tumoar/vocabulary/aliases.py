"""Names of structures as clinics write them, and the TG-263 names that they stand for.

A spelling is recognized only if it can mean nothing else (`data/aliases.toml`); what is recognized by a table
can be overruled by the user, and two structures never come to stand for one.
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
MOST_LETTERS = 64  # of a name: what DICOM allows
MOST_SHOWN = 8  # names in a message

_LETTERS = str.maketrans({"œ": "oe", "æ": "ae", "ß": "ss"})
_SEPARATORS = re.compile(r"[\s._\-()\[\]]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def canonical_name(name: str) -> str | None:
    """The name of ours that a structure's name stands for; None if there is none, or more than one.

    A leading or trailing mark, as in "_Brain" or "Brain-", is no separator: by TG-263 it has a meaning.
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
    """`--map BRSTEM=Brainstem`, repeated: a name in the file to a name of ours, or one of `known`."""
    ours = _known_names(known)
    out: dict[str, str] = {}
    for text in given:
        theirs, equals, name = (part.strip() for part in text.rpartition("="))
        if not equals or not theirs or not name:
            raise UsageError(
                "map", f"no pair of names in '{printable(text)}'", do="write --map BRSTEM=Brainstem"
            )
        if name not in ours:
            raise UsageError("map", f"no structure '{printable(name)}'", do=f"use {', '.join(ours)}")
        if theirs in out:
            raise UsageError("map", f"'{printable(theirs)}' is mapped twice", do="give one --map for it")
        if name in out.values():
            raise UsageError("map", f"two structures are mapped to {name}", do="map one of them")
        out[theirs] = name
    return out


def rename(
    names: Sequence[str], given: Mapping[str, str], known: Sequence[str] = ()
) -> dict[str, str | None]:
    """What each of a file's names stands for: as `given`, else by itself or as an alias; None if nothing.

    `known` are names beside our own that stand for themselves. Where the user has said which structure stands
    for a name, an alias of that name stands for nothing.
    """
    absent = sorted(set(given) - set(names))
    if absent:
        raise UsageError(
            "map",
            f"no structure '{printable(absent[0])}' in the file",
            found=_join_names(sorted(set(names))),
            do="check the name, which is compared letter by letter",
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
        f"{len(found)} structures stand for {printable(target)}",
        found=_join_names(found),
        do=f"say which one with --map '{printable(best)}={printable(target)}', or rename the others",
    )


def _split_words(name: str) -> list[str]:
    """Lowercase words without accents; humps ("OpticNerveLeft") are borders of words."""
    plain = unicodedata.normalize("NFKD", name.translate(_LETTERS))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return [w for w in _SEPARATORS.split(_HUMP.sub(" ", plain).casefold().translate(_LETTERS)) if w]


@cache
def _table() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Joined words of a spelling (and " L" or " R" of a sided one) to our name; word to L or R."""
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
