"""Lists of subjects: every way of writing one that a spreadsheet has, and every way of getting it wrong."""

import codecs
import os
from pathlib import Path

import pytest

from tumoar.cohort.listing import read_list
from tumoar.vocabulary.errors import UnreadableFileError, UsageError

CONTRASTS = ("T1", "T1c", "T2", "FLAIR", "CT", "other")
PLAIN = "subject,session,T1c,flair\nTCGA-02-0003,1,a.nii.gz,b.nii.gz\nP2,,a.nii.gz,\n"


@pytest.fixture
def listed(tmp_path):
    for name in ("a.nii.gz", "b.nii.gz"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "series").mkdir()

    def read(content):
        path = tmp_path / "list.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_list(path, CONTRASTS)

    return read


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r\n").rstrip() + "\r\n\r\n,,,\r\n",
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", ";"),
        PLAIN.replace("a.nii.gz", '"a.nii.gz"').replace("subject", "Subject ").replace("flair", "FLAIR"),
        codecs.BOM_UTF8 + PLAIN.encode(),
        PLAIN.encode("utf-16"),
        codecs.BOM_UTF16_BE + PLAIN.encode("utf-16-be"),
    ],
    ids=["plain", "crlf", "blank rows", "tabs", "semicolons", "quotes, case", "bom", "utf-16", "utf-16-be"],
)  # fmt: skip
def test_every_spelling_gives_the_same(listed, content, tmp_path):
    found = listed(content)
    assert [(s.name, s.problem) for s in found] == [("sub-TCGA020003_ses-1", ""), ("sub-P2", "")]
    assert found[0].images == {"T1c": str(tmp_path / "a.nii.gz"), "FLAIR": str(tmp_path / "b.nii.gz")}
    assert found[1].images == {"T1c": str(tmp_path / "a.nii.gz")}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "no column 'subject'"),
        ("subject,t1c\n", "no rows"),
        ("t1c\na.nii.gz\n", "no column 'subject'"),
        ("subject,t1c,T1C\n1,a.nii.gz,a.nii.gz\n", "a column appears twice"),
        ("subject,flare\n1,a.nii.gz\n", "unknown column 'flare', did you mean 'FLAIR'"),
        ("subject,t1c\n1,a.nii.gz\n1,b.nii.gz\n", "sub-1 appears twice"),
        ("subject,t1c\nP-1,a.nii.gz\nP1,b.nii.gz\n", "sub-P1 appears twice"),
        ("subject,t1c\n1,a.nii.gz,x\n", "row 2 has 3 cells, the header 2"),
        ("subject,t1c\n1,=cmd|'/c calc'!A0\n", "row 2, column T1c: a formula"),
        ("subject,t1c\n@1,a.nii.gz\n", "row 2, column subject: a formula"),
        ("subject,t1c\n../1,a.nii.gz\n", "subject not usable in file names"),
        ("subject,t1c\n..,a.nii.gz\n", "subject not usable in file names"),
        (f"subject,t1c\n{'1' * 65},a.nii.gz\n", "subject not usable in file names"),
        ('subject,t1c\n1,"a.nii.gz\n', "not a table"),
        (PLAIN.encode("utf-16-le"), "UTF-16 without a byte order mark"),
        ("subject,t1c\nä,a\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_list_that_is_wrong_is_refused_as_a_whole(listed, content, sentence):
    with pytest.raises(UsageError, match=r"^E2-(B61|subject) ") as refusal:
        listed(content)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x9b31m", "\u202e", "\x07"])
def test_what_a_list_says_cannot_steer_the_terminal(listed, sign):
    for content in (f"subject,{sign}\n1,a\n", f"subject,t1c\n{sign},a\n", f"subject,t1c\n1,={sign}\n"):
        with pytest.raises(UsageError) as refusal:
            listed(content)
        assert str(refusal.value).isprintable()


def test_a_pipe_or_a_device_is_no_list(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UnreadableFileError, match="E3-B1 cannot read the list"):
            read_list(path, CONTRASTS)


def test_a_file_that_is_missing_is_one_subjects_problem(listed):
    found = listed("subject,t1c,ct\n1,a.nii.gz,series\n2,gone.nii.gz,\n3,,\n4,a.nii.gz,series#2\n")
    assert [s.code for s in found] == [0, 3, 3, 0]
    assert found[1].problem == "E3-B61 T1c: no such file | file: gone.nii.gz"
    assert "no image in this row" in found[2].problem


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(UnreadableFileError, match="E3-B1 cannot read the list"):
        read_list(tmp_path / "list.csv", CONTRASTS)
