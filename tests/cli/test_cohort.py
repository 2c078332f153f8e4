"""`tumoar cohort` at the door: the plan, what is refused before anybody's turn, one subject, the summary."""

from functools import partial

import pytest
from small_cohort import FAKE

from tumoar.cli import main
from tumoar.cli.cohort_watch import CohortWatch
from tumoar.cohort import plan
from tumoar.cohort.supervise import Outcome


@pytest.fixture
def study(tmp_path, monkeypatch):
    for label, kind in (("01", "good"), ("02", "bad")):
        folder = tmp_path / "raw" / f"sub-{label}" / "anat"
        folder.mkdir(parents=True)
        (folder / f"sub-{label}_ce-gd_T1w.nii.gz").write_text(kind)
    (tmp_path / "raw" / "sub-03").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "Order", partial(plan.Order, command=FAKE))
    return tmp_path


def call(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["cohort", *map(str, arguments)])
    out, err = capfd.readouterr()
    return end.value.code, out, err


def test_a_dry_run_shows_the_plan_and_writes_nothing(study, capfd):
    code, out, err = call(capfd, "raw", "out", "participant", "--dry-run", "--workers", 2)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["0", "sub-01", "T1c"], ["1", "sub-02", "T1c"]]
    assert "E3-B1 no image found" in lines[3]
    assert lines[4].startswith("2 to run, 0 with a result, 1 that cannot be run; 2 in parallel")
    assert not (study / "out").exists()


def test_one_subject_as_an_array_job_runs_it(study, capfd):
    code, _, err = call(capfd, "raw", "out", "participant", "--index", 0)
    assert code == 0, err
    assert "sub-01 done" in err
    code, _, err = call(capfd, "raw", "out", "participant", "--participant-label", "01")
    assert (code, "sub-01 already done" in err) == (0, True)
    code, _, err = call(capfd, "raw", "out", "participant", "--participant-label", "02", "-q")
    assert (code, err) == (
        8,
        "E8-B61 1 of 1 failed | found: sub-02 | do: see group.tsv and the folder logs\n",
    )
    code, out, err = call(capfd, "raw", "out", "participant", "--dry-run")
    assert out.splitlines()[1].endswith("has a result: skipped if images and flags are the same")
    code, _, err = call(capfd, "raw", "out", "group")
    assert (code, err) == (0, "out/group.html: 1 done, 2 failed\n")


def test_everybody_on_a_list(study, capfd):
    image = "raw/sub-01/anat/sub-01_ce-gd_T1w.nii.gz"
    (study / "list.csv").write_text(f"subject,t1c\nA,{image}\nB,gone.nii.gz\n")
    code, out, _ = call(capfd, "list.csv", "out", "participant", "--dry-run", "--", "--no-tumor")
    assert code == 0
    assert "E3-B61 T1c: no such file | file: gone.nii.gz" in out
    (study / "list.csv").write_text(f"subject,t1c\nA,{image}\n")
    code, _, err = call(capfd, "list.csv", "out", "participant")
    assert (code, (study / "out" / "group.html").exists()) == (0, True), err
    card = (study / "out" / "sub-A/anat/sub-A_space-T1c_seg-tumoar_dseg.json").read_text()
    assert "sub-01" not in card, "where a file outside a dataset lay is not told"


IMAGE = "raw/sub-01/anat/sub-01_ce-gd_T1w.nii.gz"
LISTS = {
    "the same twice": (f"subject,t1c\nA,{IMAGE}\nA,{IMAGE}\n", "sub-A appears twice"),
    "capitals alone differ": (f"subject,t1c\na,{IMAGE}\nA,{IMAGE}\n", "appears twice"),
    "no rows": ("subject,t1c\n", "no rows"),
    "nothing": ("", "no column 'subject'"),
    "a formula": ("subject,t1c\nA,=1+1\n", "a formula"),
    "a name that leads elsewhere": (f"subject,t1c\n../A,{IMAGE}\n", "not usable in file names"),
    "UTF-16 without its mark": (
        f"subject,t1c\nA,{IMAGE}\n".encode("utf-16-le"),
        "UTF-16 without a byte order mark",
    ),
    "bytes": (bytes(range(256)), "not UTF-8 text"),
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_that_are_refused(study, capfd, kind):
    """B61: before the first one's turn, and nothing is written."""
    content, sentence = LISTS[kind]
    (study / "list.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, err = call(capfd, "list.csv", "out", "participant")
    assert code == 2
    assert err.splitlines()[-1].startswith(("E2-B61", "E2-subject"))
    assert sentence in err
    assert not (study / "out").exists()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_lists_that_are_taken(study, capfd, encoding):
    text = f"subject,t1c\r\nA,{IMAGE}\r\nB,gone.nii.gz\r\n"
    (study / "list.csv").write_bytes(text.encode(encoding))
    code, _, err = call(capfd, "list.csv", "out", "participant", "--participant-label", "B")
    assert code == 8, err
    assert err.splitlines()[-1].startswith("E8-B61 1 of 1 failed | found: sub-B")
    assert not (study / "out" / "results" / "sub-B").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["raw", "out", "participant", "--index", "7"], "E2-B61 no subject with this number"),
        (["raw", "out", "participant", "--index", "0", "--participant-label", "01"], "E2-B61 --index cannot"),
        (["raw", "out", "participant", "--", "--burnin", "3"], "No such option: --burnin"),
        (["raw", "out", "participant", "--", "--samples", "0"], "E2-B55 setting gibbs.samples"),
        (["raw", "out", "participant", "--", "--t1c", "x"], "E2-flags flags for segment: --t1c is set by"),
        (["raw", "out", "participant", "--", "-o", "x"], "E2-flags flags for segment: --output is set by"),
        (["raw", "out", "participant", "--", "--exclude", "x"], "E2-flags flags for segment: no such file"),
        (["raw", "raw", "participant", "--index", "0"], "E2-output the output is the dataset itself"),
        (["nowhere.csv", "out", "participant"], "E3-B1 cannot read the list"),
        (["raw", "out", "both"], "Usage"),
    ],
)
def test_what_is_refused_before_anybodys_turn(study, capfd, arguments, sentence):
    code, _, err = call(capfd, *arguments)
    assert code in (2, 3)
    assert sentence in err
    assert "Traceback" not in err
    assert not (study / "out").exists()


def test_progress_is_told_with_the_time_left(capfd):
    with CohortWatch(5, 2) as watch:
        watch.tell({"name": "sub-1", "stage": "sample", "done": 50, "total": 250})
        assert watch.running == {"sub-1": "sampling (Algorithm 1) 20 %"}
        watch.add(Outcome("sub-1", "done", seconds=600, attempts=1))
        watch.add(Outcome("sub-2", "skipped"))
        watch.add(Outcome("sub-3", "failed", 5, "E5-B23 no signal", 200, attempts=1))
    assert watch.running == {}
    lines = [line.split("s  ", 1)[1] for line in capfd.readouterr().err.splitlines()]
    assert lines == [
        "sub-1 done in 10 min  [1 of 5 done, about 20 min left]",
        "sub-2 already done  [2 of 5 done, about 15 min left]",
        "sub-3 FAILED in 3 min: E5-B23 no signal  [2 of 5 done, 1 failed, about 7 min left]",
    ]
