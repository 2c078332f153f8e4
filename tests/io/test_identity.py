"""Who two files say they show: compared as written, apart from what DICOM lets systems write differently."""

from __future__ import annotations

import hashlib
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydicom import Dataset, dcmread
from rt_files import MR, dataset, save

from tumoar.io.identity import is_same_person, merge_people, person_of, require_patient, seal_identity
from tumoar.vocabulary.errors import GeometryError

SALT = "0" * 64


def header(**values):
    data = Dataset()
    for keyword, value in values.items():
        setattr(data, keyword, value)
    return data


def are_same(one, other):
    return is_same_person(person_of(header(**one)), person_of(header(**other)))


def ids(a, b):
    return are_same({"PatientID": a}, {"PatientID": b})


def names(a, b):
    return are_same({"PatientName": a}, {"PatientName": b})


# ---- what differs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [("P-1.12", "P-11.2"), ("1-12", "11-2"), ("A 1", "A1"), ("a1", "A1"), ("007", "7"), ("1/2", "12")],
)
def test_ids_that_differ_in_any_character_are_two_patients(one, other):
    assert not ids(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MÜLLER^HANS", "MULLER^HANS"),
        ("Doe^John", "Doe^Joan"),
        ("Doe^John", "DoeJ^ohn"),
        ("किरण", "करण"),  # they differ in a combining sign
        ("Doe^J=山田^太郎", "Doe^J=山田^次郎"),
        ("Doe^^John", "Doe^John"),
    ],
)
def test_names_that_differ_are_two_patients(one, other):
    assert not names(one, other)


@pytest.mark.parametrize("keyword", ["PatientID", "PatientName"])
def test_a_value_of_signs_alone_is_a_value(keyword):
    assert not are_same({keyword: "---"}, {keyword: "+++"})


# ---- what does not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DOE^JOHN", "DOE^JOHN^^^"),
        ("DOE^JOHN", "Doe^John "),
        ("Doe^John", " Doe ^ John"),
        ("Doe^John=山田^太郎", "Doe^John"),
        ("Doe^John==やまだ", "Doe^John=山田^太郎"),
        ("STRASSE^A", "Straße^A"),
        (unicodedata.normalize("NFC", "Müller^Jörg"), unicodedata.normalize("NFD", "Müller^Jörg")),
        ("", "Doe^John"),
        ("^^^^", "Doe^John"),
        ("==", "Doe^John"),
    ],
)
def test_ways_to_write_one_name(one, other):
    assert names(one, other)


@pytest.mark.parametrize("other", ["P-1 ", " P-1", "P-1\0", "", None])
def test_padding_is_no_part_of_an_id_and_an_empty_one_says_nothing(other):
    assert ids("P-1", other)


@pytest.mark.filterwarnings("ignore:Invalid value for VR")
def test_dates_and_sex_in_the_older_spelling():
    assert are_same({"PatientBirthDate": "1941.03.13"}, {"PatientBirthDate": "19410313"})
    assert not are_same({"PatientBirthDate": "1941.03.13"}, {"PatientBirthDate": "19410314"})
    assert are_same({"PatientSex": "f "}, {"PatientSex": "F"})


NAMES_BY_SET = {
    "ISO_IR 100": ("Müller^Jörg", "latin-1"),
    "ISO_IR 192": ("Müller^Jörg", "utf-8"),
    "GB18030": ("Müller^Jörg", "gb18030"),
}


@pytest.mark.parametrize("charset", NAMES_BY_SET)
def test_one_name_in_several_character_sets(tmp_path, charset):
    people = []
    for which in ("ISO_IR 192", charset):
        data = dataset(MR, SpecificCharacterSet=which, PatientName="Müller^Jörg", PatientID="Ä-1")
        path = save(data, tmp_path / "a.dcm")
        assert "Müller^Jörg".encode(NAMES_BY_SET[which][1]) in path.read_bytes()
        people.append(person_of(dcmread(path)))
    assert people[0] == people[1]
    assert is_same_person(*people)
    assert seal_identity(people[0], SALT) == seal_identity(people[1], SALT)


# ---- properties --------------------------------------------------------------------------------------------

# What a header may hold: no control characters, no backslash (it separates values), no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\\=^"), max_size=12)
PEOPLE = st.fixed_dictionaries(
    {
        "PatientID": TEXT,
        "PatientName": st.builds("^".join, st.lists(TEXT, max_size=3)),
        "PatientBirthDate": st.sampled_from(["", "19500101", "19500102"]),
        "PatientSex": st.sampled_from(["", "F", "M", "O"]),
    }
)
MANY = settings(max_examples=150, deadline=None, derandomize=True)


@MANY
@given(one=PEOPLE, other=PEOPLE)
def test_the_comparison_is_reflexive_and_symmetric(one, other):
    a, b = person_of(header(**one)), person_of(header(**other))
    assert is_same_person(a, a)
    assert is_same_person(a, b) == is_same_person(b, a)


@MANY
@given(one=PEOPLE, form=st.sampled_from(["NFC", "NFD"]))
def test_the_comparison_does_not_depend_on_how_accents_are_stored(one, form):
    other = {keyword: unicodedata.normalize(form, value) for keyword, value in one.items()}
    assert person_of(header(**one)) == person_of(header(**other))


@MANY
@given(text=TEXT, at=st.integers(0, 12), new=TEXT.filter(lambda t: len(t) == 1))
def test_any_other_character_in_an_id_makes_it_another(text, at, new):
    changed = text[:at] + new + text[at + 1 :]
    plain = [unicodedata.normalize("NFC", t).strip() for t in (text, changed)]
    assume(all(plain) and plain[0] != plain[1])
    assert not ids(text, changed)


def test_what_several_images_tell_together_keeps_its_places():
    one, other = (person_of(header(**p)) for p in ({"PatientID": "1"}, {"PatientSex": "F"}))
    assert merge_people([(), one, other]) == person_of(header(PatientID="1", PatientSex="F"))


# ---- seals -------------------------------------------------------------------------------------------------

DOE = {"PatientID": "P-1.12", "PatientName": "Doe^Jané", "PatientBirthDate": "19500101", "PatientSex": "F"}


def person(**changes):
    return person_of(header(**DOE | changes))


def check(seal, who):
    return require_patient(seal, SALT, who, "the series")


def test_a_seal_is_recognized_and_says_nothing():
    seal = seal_identity(person(), SALT)
    assert check(seal, person(PatientName="DOE^JANÉ^^")) is True
    assert not any(text in str(seal) for text in ("P-1", "Doe", "doe", "1950"))


@pytest.mark.parametrize(
    "changes", [{"PatientID": "P-11.2"}, {"PatientName": "Doe^Jane"}, {"PatientBirthDate": "19500102"}]
)
def test_a_seal_of_somebody_else_is_refused(changes):
    with pytest.raises(GeometryError, match="E4-B34"):
        check(seal_identity(person(), SALT), person(**changes))


@pytest.mark.parametrize("who", [(), person_of(header()), person_of(header(PatientSex="F"))])
def test_it_is_said_when_nothing_could_be_compared(who):
    assert check(seal_identity(person(), SALT), who) is False
    assert check({}, person()) is False


def older(**changes):
    """The seal as version 1 made it: letters and digits alone, whatever their normal form."""
    values = [
        "".join(c for c in str((DOE | changes)[k]).casefold() if c.isalnum())
        for k in ("PatientID", "PatientName", "PatientBirthDate")
    ]

    def digest(text):
        return hashlib.scrypt(text.encode(), salt=SALT.encode(), n=2**14, r=8, p=1, dklen=16).hex()

    return {"id": digest(f"id {values[0]}"), "name": digest(f"name {values[1]} {values[2]}")}


def test_an_older_seal_refuses_who_is_surely_another_and_vouches_for_nobody():
    assert check(older(), person()) is False
    assert check(older(PatientName=unicodedata.normalize("NFD", DOE["PatientName"])), person()) is False
    assert check(older(PatientID="P-11.2"), person()) is False  # it cannot tell
    assert check(older(), person(PatientID="", PatientBirthDate="")) is False
    assert check(older(), person(PatientName="Doe^Jané=山田^花子")) is False
    assert check(older(), ()) is False
    with pytest.raises(GeometryError, match="E4-B34"):
        check(older(), person(PatientID="P-2"))
    with pytest.raises(GeometryError, match="E4-B34"):
        check(older(), person(PatientName="Roe^Jané"))


@pytest.mark.parametrize("seal", [{"v": "3", "id": "0" * 32}, {"v": 2}, {"v": "2"}])
def test_a_seal_of_another_kind_vouches_for_nobody(seal):
    assert check(seal, person()) is False


@pytest.mark.parametrize("seal", [{"id": 5}, {"v": "2", "id": None}])
def test_a_damaged_seal_is_nobodys(seal):
    with pytest.raises(GeometryError, match="E4-B34"):
        check(seal, person())
