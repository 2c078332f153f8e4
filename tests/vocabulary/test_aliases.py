"""Which spellings stand for a structure of ours, and which must not."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.vocabulary.aliases import canonical_name, parse_map, rename
from tumoar.vocabulary.errors import TumoarError, UsageError
from tumoar.vocabulary.labels import add_cavity, default_labels

OURS = [organ.name for organ in add_cavity(default_labels()).organs]
TABLE = tomllib.loads(files("tumoar").joinpath("data/aliases.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("BRSTEM", "Brainstem"),
        ("Brain Stem", "Brainstem"),
        ("BrainStem", "Brainstem"),
        (" brainstem ", "Brainstem"),
        ("BRAIN_STEM", "Brainstem"),
        ("Hirnstamm", "Brainstem"),
        ("Tronc cérébral", "Brainstem"),
        ("Chiasm", "OpticChiasm"),
        ("Optic Chiasm", "OpticChiasm"),
        ("OPT CHIASM", "OpticChiasm"),
        ("Chiasma opticum", "OpticChiasm"),
        ("OPT NRV L", "OpticNrv_L"),
        ("Optic Nerve - Rt", "OpticNrv_R"),
        ("Optic Nerve-Lt", "OpticNrv_L"),
        ("OpticNerve_Left", "OpticNrv_L"),
        ("OpticNerveRight", "OpticNrv_R"),
        ("Rt. Optic Nerve", "OpticNrv_R"),
        ("N. opticus li.", "OpticNrv_L"),
        ("Nervio óptico izq", "OpticNrv_L"),
        ("Eye (L)", "Eye_L"),
        ("REye", "Eye_R"),
        ("Globe_L", "Eye_L"),
        ("Œil gauche", "Eye_L"),
        ("Hippo_R", "Hippocampus_R"),
        ("BRAIN", "Brain"),
        ("gtv", "GTV"),
        ("Ödem", "Edema"),
    ],
)
def test_common_spellings(name, ours):
    assert canonical_name(name) == ours


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "L", "Left", "Eye", "Eyes", "EYEL", "Eye L R", "Eye_L_R", "Optic Nerve", "L Eye L",
        "Orbit_L", "Lens_L", "EyeLens_L", "Lens - left", "Brainstem_PRV", "Brainstem PRV03",
        "Brainstem+3mm", "Brainstem-3mm", "PRV Brainstem", "Brainstem_Core", "Brainstem L", "Brain-PTV",
        "Brain-GTV", "Brain - Brainstem", "Brain-", "_Brain", "zBrain", "Brain~", "~Brain", "Brain*",
        "Brain^1", "Brain1", "Brain 2", "optBRAIN", "optOptic", "BRAI", "PTV1", "PTV", "CTV", "GTV1",
        "GTV_1", "GTVn", "iGTV", "GTV-CT", "Hippocampus", "Hippocampi", "Chiasm PRV", "OpticChiasm_PRV5",
        "OpticNrv_PRV05_L", "OpticTract_L", "Brain" * 20, "Temporal Lobe L", "Optic L Nerve", "BODY",
        "External", "Spinal Canal", "Eye_L\x00", "Eye/L", "$x^$", "眼 L",
    ],
)  # fmt: skip
def test_what_may_be_something_else_is_not_recognized(name):
    assert canonical_name(name) is None


def test_our_names_stand_for_themselves():
    assert [canonical_name(name) for name in OURS] == OURS


def test_no_spelling_of_the_table_means_two_things():
    sides = [word for words in TABLE["sides"].values() for word in words]
    assert len(set(sides)) == len(sides)
    for spellings in TABLE["whole"].values():
        assert {canonical_name(s) for s in spellings} <= set(OURS)
    for organ, spellings in TABLE["whole"].items():
        assert organ in OURS
        assert {canonical_name(s) for s in spellings} == {organ}
    for stem, spellings in TABLE["sided"].items():
        for side, letter in (("left", "L"), ("right", "R")):
            assert f"{stem}_{letter}" in OURS
            words = TABLE["sides"][side]
            assert {canonical_name(f"{s} {w}") for s in spellings for w in words} == {f"{stem}_{letter}"}
            assert {canonical_name(f"{w} {s}") for s in spellings for w in words} == {f"{stem}_{letter}"}


def test_the_names_of_a_planning_system():
    names = ["BODY", "BRAI", "BRAIN", "BRSTEM", "CTV", "GTV", "Lens - left", "Optic Chiasm", "Orbit - left"]
    assert rename(names, {}) == dict(
        zip(names, [None, None, "Brain", "Brainstem", None, "GTV", None, "OpticChiasm", None])
    )


def test_two_structures_never_stand_for_one():
    for names in (["Brainstem", "BRSTEM"], ["BRAIN", "brain"], ["Chiasm", "Optic Chiasm"], ["GTV", "GTV"]):
        with pytest.raises(UsageError, match="2 structures match") as refusal:
            rename(names, {})
        assert refusal.value.found == ", ".join(names)
    with pytest.raises(UsageError, match="2 structures match Brainstem"):
        rename(["Brainstem", "mine"], {"mine": "Brainstem"})


def test_the_user_decides_between_aliases():
    assert rename(["BRSTEM", "Brain Stem"], {"BRSTEM": "Brainstem"}) == {
        "BRSTEM": "Brainstem",
        "Brain Stem": None,
    }
    assert rename(["Eye L", "Auge"], {"Auge": "Eye_R"}) == {"Eye L": "Eye_L", "Auge": "Eye_R"}
    swapped = {"Eye_L": "Eye_R", "Eye_R": "Eye_L"}
    assert rename(["Eye_L", "Eye_R"], swapped) == swapped


def test_further_names_may_be_known():
    assert rename(["lens_l", "CTV_20"], {}, ["Lens_L", "CTV_20"]) == {"lens_l": "Lens_L", "CTV_20": "CTV_20"}
    assert parse_map(["Lens - left=Lens_L"], ["Lens_L"]) == {"Lens - left": "Lens_L"}


def test_a_map_that_meets_nothing_is_refused():
    with pytest.raises(UsageError, match="no structure 'BRSTM' in the file"):
        rename(["BRSTEM"], {"BRSTM": "Brainstem"})


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        (["BRSTEM"], "'BRSTEM' is not a pair of names"),
        (["=Brainstem"], "'=Brainstem' is not a pair of names"),
        (["BRSTEM="], "'BRSTEM=' is not a pair of names"),
        ([""], "'' is not a pair of names"),
        (["BRSTEM=Liver"], "unknown structure 'Liver'"),
        (["BRSTEM=brainstem"], "unknown structure 'brainstem'"),
        (["a=Eye_L", "a=Eye_R"], "'a' is mapped twice"),
        (["a=Eye_L", "a=Eye_L"], "'a' is mapped twice"),
        (["a=Eye_L", "b=Eye_L"], "two structures are mapped to Eye_L"),
    ],
)
def test_maps_that_make_no_sense(given_, sentence):
    with pytest.raises(UsageError) as refusal:
        parse_map(given_)
    assert refusal.value.what.startswith(sentence)
    assert refusal.value.id == "map"


def test_maps():
    assert parse_map([]) == {}
    assert parse_map(["BRSTEM=Brainstem", " a=b = Eye_L"]) == {"BRSTEM": "Brainstem", "a=b": "Eye_L"}


SPELLING = st.lists(
    st.sampled_from(
        [*OURS, "Eye", "L", "left", "RT", "Optic", "Nerve", "PRV", "brain", "stem", " ", "_", "-", "=", "+3"]
    )
    | st.text(max_size=3),
    max_size=5,
).map("".join)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(names=st.lists(SPELLING, max_size=6), pairs=st.lists(st.tuples(SPELLING, SPELLING), max_size=3))
def test_any_names_are_understood_or_refused(names, pairs):
    for name in names:
        assert canonical_name(name) in (None, *OURS)
        if "PRV" in name or "+" in name:
            assert canonical_name(name) is None
    try:
        found = rename(names, parse_map([f"{a}={b}" for a, b in pairs]))
    except TumoarError:
        return
    taken = [name for name in found.values() if name is not None]
    assert len(set(taken)) == len(taken)
    assert set(found) == set(names)
