"""Names of files, folders and machines: in nothing that a cohort shows to others."""

import json
import socket
import sys
from functools import partial
from pathlib import Path

import pytest

from tumoar.cli import main
from tumoar.cohort import plan
from tumoar.cohort.private import remove_names
from tumoar.cohort.subjects import Subject

WORDS = (
    "Mueller",
    "HANS",
    "Österreicher",
    "19501224",
    "Zürich",
    "Jane",
    "Doe",
    "Station7",
    "PACS",
    "Oncology9",
)
WHO = Subject(
    "01",
    images={
        "T1c": "/home/Doe/Jane Study/MUELLER_HANS_T1.nii.gz",
        "FLAIR": "/home/Doe/Jane Study/FLAIR.nii.gz",
        "T2": "/home/Doe/Österreicher#2",
    },
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("E5-B23 bad | file: MUELLER_HANS_T1.nii.gz | do: x", "E5-B23 bad | file: the T1c | do: x"),
        ("E3-B48 damaged | file: HANS_0001.dcm", "E3-B48 damaged"),
        ("E3-B48 damaged | file: Österreicher#2", "E3-B48 damaged | file: the T2"),
        ("E12-result changed | file: run.json", "E12-result changed | file: run.json"),
        ("E5-B23 no signal in FLAIR | file: FLAIR.nii.gz", "E5-B23 no signal in FLAIR | file: the FLAIR"),
        ("warning: /home/Doe/Jane Study/MUELLER_HANS_T1.nii.gz is odd", "warning: the T1c is odd"),
        ('File "/home/Doe x/lib/a.py", line 3, in f', 'File "(path)", line 3, in f'),
        ("cannot open /home/Doe/other/x.nii", "cannot open (path)"),
        ("see MUELLER_HANS_T1, then stop", "see the T1c, then stop"),
        ("12 mm/s and 1/2, and/or", "12 mm/s and 1/2, and/or"),
        ("\x1b[31mred", "?[31mred"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_is_shown_of_a_line(text, shown):
    assert remove_names(text, WHO) == shown
    assert remove_names(shown, WHO) == shown


def test_names_are_found_as_json_writes_them():
    text = json.dumps({"text": "/home/Doe/Österreicher#2", "more": "see Österreicher#2"})
    shown = remove_names(text, WHO)
    assert "sterreicher" not in shown
    assert json.loads(shown) == {"text": "(path)", "more": "see the T2"}


LEAKY = """
import os, sys
sys.path.insert(0, {tests!r})
import fake_segment
from pathlib import Path
arguments = sys.argv[2:]
image = arguments[arguments.index("--image") + 1].rpartition(":")[0]
print("reading", image, "of", Path(image).parent)
print("Traceback:\\n  File " + repr(os.path.join(os.path.dirname(image), "x.py")) + ", line 1")
print("stem", Path(image).name.split(".")[0], flush=True)
fake_segment.main()
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A list of two, named as clinics name their files; the process of each says what it should not."""
    monkeypatch.setenv("HOSTNAME", "Station7")
    monkeypatch.setattr(socket, "gethostname", lambda: "Station7")
    monkeypatch.setattr("platform.node", lambda: "Station7")
    monkeypatch.setenv("USER", "Oncology9")
    monkeypatch.setenv("LOGNAME", "Oncology9")
    folder = tmp_path / "Zürich" / "Jane Doe 19501224"
    folder.mkdir(parents=True)
    (folder / "Mueller_HANS_T1.nii.gz").write_text("good")
    (folder / "Österreicher_T1.nii.gz").write_text("bad")
    rows = ["A,Mueller_HANS_T1.nii.gz", "B,Österreicher_T1.nii.gz", "C,PACS_Mueller.nii.gz"]
    (folder / "list.csv").write_text("\n".join(["subject,t1c", *rows]), encoding="utf-8")
    script = tmp_path / "leaky.py"
    script.write_text(LEAKY.format(tests=str(Path(__file__).parents[1])))
    command = (sys.executable, str(script))
    monkeypatch.setattr(plan, "Order", partial(plan.Order, command=command))
    return folder / "list.csv", tmp_path / "out"


def test_nothing_that_is_shared_names_a_file_a_folder_or_a_machine(study, capfd):
    source, out = study
    with pytest.raises(SystemExit) as end:
        main(["cohort", str(source), str(out), "participant", "--workers", "2", "--retries", "0"])
    assert end.value.code == 8
    capfd.readouterr()
    looked_at = [p for p in out.rglob("*") if p.is_file() and "turns" not in p.parts]
    assert {"group.tsv", "group.html", "sub-A.json", "sub-B.txt"} <= {p.name for p in looked_at}
    for path in looked_at:
        content = path.read_bytes().lower()
        for word in WORDS:
            for form in (word, json.dumps(word)[1:-1]):
                assert form.lower().encode() not in content, f"{word} in {path.name}"
    assert "file: the T1c" in (out / "group.tsv").read_text()
    assert "reading the T1c" in (out / "logs" / "sub-A.txt").read_text()


def test_a_dataset_is_linked_to_only_where_no_name_is_needed(tmp_path):
    from tumoar.cohort.tree import begin_tree, is_plain

    raw = tmp_path / "MUELLER" / "raw"
    raw.mkdir(parents=True)
    begin_tree(plan.Order(str(tmp_path / "out"), raw=str(raw)))
    assert "MUELLER" not in (tmp_path / "out" / "dataset_description.json").read_text()
    inside = raw / "derivatives" / "tumoar"
    begin_tree(plan.Order(str(inside), raw=str(raw)))
    assert json.loads((inside / "dataset_description.json").read_text())["DatasetLinks"] == {"raw": "../.."}
    assert is_plain("sub-01_ses-2_ce-gd_run-1_T1w.nii.gz")
    assert not is_plain("sub-01_acq-MUELLER_T1w.nii.gz")
