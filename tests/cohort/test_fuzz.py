"""Lists and datasets that are nearly right: subjects with safe names, or one sentence."""

import re
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.cohort.listing import read_list
from tumoar.cohort.subjects import find_subjects
from tumoar.vocabulary.errors import TumoarError

CONTRASTS = ("T1", "T1c", "T2", "FLAIR", "CT", "other")
COLUMNS = st.sampled_from(
    [
        "subject",
        "Subject ",
        "session",
        "t1c",
        "T1C",
        "flair",
        "ct",
        "",
        "flare",
        "=x",
        "\x1b[2J",
        "ä",
        '"t1"',
        "a b",
    ]
)
ODD = ["=1+1", "@x", "-1", "'=1", '"', '""', '"a', "a\rb", "\u202e", "a\tb", "\\", "%00", "~", "CON", "1;2"]
PLAIN = ["1", "sub-01", "ses-2", "TCGA-02-0003", "", " ", "a.nii.gz", "../a", "/", ".", "a#2", "#", "x" * 300]
CELLS = st.one_of(st.sampled_from([*PLAIN, *ODD]), st.text(max_size=6))
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"])


@st.composite
def lists(draw):
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=5, unique=draw(st.booleans())))
    if draw(st.booleans()):
        columns = ["subject", "t1c", *columns[:1]]
    rows = draw(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=4))
    rows = [row[: len(columns)] + [""] * (len(columns) - len(row)) for row in rows]
    ends, between = draw(st.sampled_from(["\n", "\r\n", "\r"])), draw(st.sampled_from([",", ";", "\t", "|"]))
    text = ends.join(between.join(row) for row in [columns, *rows])
    return text.encode(draw(ENCODINGS), errors="replace")


def check(subjects):
    names = [subject.name for subject in subjects]
    assert all(re.fullmatch(r"sub-[A-Za-z0-9]+(_ses-[A-Za-z0-9]+)?", name) for name in names)
    assert len({name.lower() for name in names}) == len(names)
    for subject in subjects:
        assert subject.problem.isprintable()
        assert bool(subject.problem) == bool(subject.code)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(lists())
def test_any_list_is_subjects_or_a_refusal(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "list.csv"
    path.write_bytes(content)
    try:
        found = read_list(path, CONTRASTS)
    except TumoarError as error:
        sentence = str(error)
    else:
        check(found)
        return
    assert sentence.isprintable()


KEYS = st.sampled_from(["sub", "ses", "acq", "ce", "run", "part", "echo", "desc", "x"])
VALUES = st.sampled_from(["01", "1", "a", "phase", "mag", "gd", "99999999999999999999", "a+b", "", "ä"])
SUFFIXES = st.sampled_from(["T1w", "T2w", "FLAIR", "ct", "CT", "DIR", "bold", ""])
ENDS = st.sampled_from([".nii.gz", ".nii", ".json", ".NII", ""])


@st.composite
def file_names(draw):
    entities = draw(st.lists(st.tuples(KEYS, VALUES), max_size=4))
    own = [("sub", "01")] if draw(st.booleans()) else []
    return "_".join([*(f"{k}-{v}" for k, v in [*own, *entities]), draw(SUFFIXES)]) + draw(ENDS)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(file_names(), max_size=6),
    st.sampled_from(["sub-01", "sub-01/ses-1", "sub-", "sub-ä", "sub-01/ses-"]),
    st.binary(max_size=30),
)
def test_any_dataset_is_subjects_or_a_refusal(tmp_path_factory, names, place, participants):
    root = tmp_path_factory.getbasetemp() / "dataset"
    shutil.rmtree(root, ignore_errors=True)
    (root / place / "anat").mkdir(parents=True)
    (root / "participants.tsv").write_bytes(b"participant_id\n" + participants)
    for name in names:
        if name:
            (root / place / "anat" / name).write_bytes(b"")
    try:
        found = find_subjects(root)
    except TumoarError as error:
        sentence = str(error)
    else:
        check(found)
        return
    assert sentence.isprintable()
