"""Notes on the page: the most severe first, one action each, repeated ones merged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tumoar.report.notes import action_of, arrange_notes
from tumoar.vocabulary.notes import Note

SRC = Path(__file__).resolve().parents[2] / "src" / "tumoar"
REPEATED = [Note("B37", "NOT SEEN", where="Eye_L"), Note("B37", "NOT SEEN", where="Eye_R")]


def test_what_puts_the_whole_result_in_doubt_comes_first():
    notes = [
        Note("residual", "none", level="info"),
        Note("B20", "thick slices"),
        Note("T51", "empty"),
        Note("drift", "drifts", action="raise --burn-in"),
        Note("B36", "not left"),
        Note("swapped", "brighter", action="check the names"),
    ]
    assert [item.id for item in arrange_notes(notes)] == ["swapped", "B36", "T51", "drift", "B20", "residual"]
    assert [item.id for item in arrange_notes(notes[::-1])] == [
        "swapped",
        "B36",
        "T51",
        "drift",
        "B20",
        "residual",
    ]


def test_notes_that_repeat_are_merged_and_none_is_lost():
    (item,) = arrange_notes([*REPEATED, Note("B37", "seen in part", where="Brainstem"), REPEATED[0]])
    assert item.says == ("Eye_L, Eye_R: NOT SEEN", "Brainstem: seen in part")
    assert item.action == action_of(REPEATED[0]) != ""


def test_notes_that_ask_for_different_things_stay_apart():
    items = arrange_notes([Note("cavity", "none", action="omit --postop"), Note("cavity", "fluid")])
    assert len({item.action for item in items}) == 2


def test_a_note_of_another_version_is_shown():
    (item,) = arrange_notes([Note("unheard-of", "something")])
    assert (item.rank, item.says, item.action) == ("structure", ("something",), "")


def test_every_note_of_the_package_has_a_rank_and_an_action():
    table = tomllib.loads((SRC / "data" / "notes.toml").read_text("utf-8"))
    ranked = [id for ids in table["rank"].values() for id in ids]
    assert len(set(ranked)) == len(ranked)
    lacking = []
    for path in (p for p in SRC.rglob("*.py") if p.parent.name != "cohort"):  # whose notes are on no page
        for id, rest in re.findall(r'Note\(\s*"([\w-]+)"((?:[^()]|\([^()]*\))*)\)', path.read_text("utf-8")):
            note = Note(id, "", action="x" if "action=" in rest else "")
            if id not in ranked or not action_of(note):
                lacking.append(f"{path.name}: {id}")
    assert lacking == []
