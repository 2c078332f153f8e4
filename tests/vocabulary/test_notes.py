"""Notes: one line for the user, plain values for files, and nothing read back from text."""

import json
from dataclasses import FrozenInstanceError

import pytest

from tumoar.vocabulary.notes import Note, needs_review

FULL = Note("B32", "alignment with CT is uncertain by 1.2 mm", "info", "check both images", "T1c")


def test_one_line_has_id_place_text_and_action():
    assert str(FULL) == "B32 T1c: alignment with CT is uncertain by 1.2 mm; check both images"
    assert str(Note("B43", "no tumor found")) == "B43 no tumor found"


@pytest.mark.parametrize(
    "note", [FULL, Note("B43", "no tumor found"), Note("x", "a: b; c", where="B20 d: e")]
)
def test_a_note_survives_json(note):
    assert Note.from_dict(json.loads(json.dumps(note.to_dict()))) == note


def test_a_note_of_an_older_version_asks_for_a_review():
    note = Note.from_dict({"id": "B20", "text": "T1c: thick slices: 7 mm"})
    assert note == Note("B20", "T1c: thick slices: 7 mm", level="review", action="", where="")


def test_what_else_a_row_holds_is_left_alone_and_nothing_steers_a_terminal():
    assert Note.from_dict({"id": "a", "text": "\x1b[2J", "level": "loud", "more": 1}) == Note("a", "?[2J")


def test_only_level_review_asks_for_a_review():
    assert not needs_review([])
    assert not needs_review([FULL])
    assert needs_review([FULL, Note("B43", "no tumor found")])


def test_notes_are_frozen():
    with pytest.raises(FrozenInstanceError):
        FULL.text = "another"
