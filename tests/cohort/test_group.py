"""The summary: it adds up, says who is unusual, and its page opens anywhere."""

import csv
import re
from dataclasses import replace

import pytest
from small_cohort import order, subjects
from small_result import small_result

from tumoar.cohort.group import mark_unusual, summary, write_group
from tumoar.cohort.supervise import Outcome, supervise, write_record
from tumoar.io.manifest import read_manifest, write_manifest
from tumoar.quality import Note
from tumoar.report import render, report_data


@pytest.fixture(scope="module")
def page():
    return render(report_data(small_result(), [Note("B43", "no tumor found")], {}))


@pytest.fixture
def study(tmp_path, page):
    """Two done, one of them with pictures and a flag; one failed, one missing, one begun, one not run."""
    kinds = {"1": "good", "2": "good", "3": "bad", "4": "good", "5": "good", "6": "good"}
    who, how = subjects(tmp_path / "images", kinds), order(tmp_path / "out")
    who[3] = replace(who[3], code=3, problem="E3-B61 T1c: no such file | file: <b>.nii.gz")
    for subject in who[:3]:
        supervise(subject, how)
    manifest = read_manifest(how.result("sub-1"))
    manifest |= {"status": "NEEDS REVIEW", "notes": [{"id": "B43", "text": "no tumor found <i>"}]}
    (how.result("sub-1") / "report.html").write_text(page, encoding="utf-8")
    write_manifest(how.result("sub-1"), manifest)
    (tmp_path / "out" / "results" / ".sub-5.checkpoints").mkdir()
    return who, how


def read(how):
    with open(f"{how.out}/group.tsv", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_everybody_is_in_it_once_and_it_adds_up(study):
    who, how = study
    counts = write_group(who, how)
    assert counts == {"done": 2, "failed": 2, "interrupted": 1, "not run": 1}
    rows = read(how)
    assert [row["participant_id"] for row in rows] == [f"sub-{n}" for n in "123456"]
    states = ["done", "done", "failed", "failed", "interrupted", "not run"]
    assert [row["state"] for row in rows] == states
    assert rows[0]["flags"] == "B43"
    assert (rows[0]["GTV_mean_cm3"], rows[2]["GTV_mean_cm3"]) == ("2.0", "n/a")
    assert rows[2]["reason"] == "E5-B23 no signal in T1c | file: t1c.nii.gz"
    assert rows[3]["code"] == "3"


def test_the_page_shows_pictures_reasons_and_nothing_from_outside(study):
    who, how = study
    write_group(who, how)
    with open(f"{how.out}/group.html", encoding="utf-8") as file:
        page = file.read()
    assert page.count("data:image/jpeg;base64,") == 3
    assert "no tumor found &lt;i&gt;" in page
    assert "&lt;b&gt;.nii.gz" in page
    assert re.findall(r'(?:src|href)="(?!data:|#|results/sub-)([^"]*)"', page) == []
    assert "its report cannot be read" in page  # sub-2 has none
    assert "http" not in page.replace("http-equiv", "")


def test_a_newer_failure_is_told_before_an_older_result(study):
    who, how = study
    write_record(how, Outcome("sub-1", "failed", 12, "E12-B57 the output folder holds something else"))
    assert summary(who[0], how)["state"] == "failed"
    (how.result("sub-2") / "run.json").unlink()
    assert summary(who[1], how)["reason"] == "its result is gone"


def test_an_unusual_organ_is_found_and_tumors_never_are():
    def row(eye, gtv):
        return {"volumes": {"Eye_L": {"mean_cm3": eye}, "GTV": {"mean_cm3": gtv}}}

    rows = [row(8 + 0.1 * n, 10.0) for n in range(9)] + [row(4.0, 90.0), {"volumes": {}}]
    mark_unusual(rows)
    assert [len(r["unusual"]) for r in rows] == [0] * 9 + [1, 0]
    assert rows[9]["unusual"] == [{"name": "Eye_L", "cm3": 4.0, "median": 8.35}]
    few = [row(8.0, 1.0), row(8.1, 1.0), row(1.0, 1.0)]
    mark_unusual(few)
    assert not any(r["unusual"] for r in few)
