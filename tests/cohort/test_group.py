"""The summary: it adds up, says who is unusual, and its page opens anywhere."""

import base64
import csv
import json
import re
import shutil
import struct
import zlib
from dataclasses import replace

import pytest
from small_cohort import order, subjects
from small_result import small_result

from tumoar.cohort.group import mark_unusual, summary, write_group
from tumoar.cohort.supervise import Outcome, supervise, write_record
from tumoar.io.manifest import read_manifest, write_manifest
from tumoar.io.manifest_schema import seal
from tumoar.report import render, report_data
from tumoar.vocabulary.notes import Note


@pytest.fixture(scope="module")
def page():
    return render(report_data(small_result(), [Note("B43", "no tumor found")], {}))


def members(folder):
    kinds = {"1": "good", "2": "good", "3": "bad", "4": "good", "5": "good", "6": "good"}
    who, how = subjects(folder / "images", kinds), order(folder / "out")
    who[3] = replace(who[3], code=3, problem="E3-B61 T1c: no such file | file: JANE.nii.gz | found: <b>")
    return who, how


@pytest.fixture(scope="module")
def template(tmp_path_factory, page):
    """Two done, one of them with pictures and a flag; one failed, one missing, one begun, one not run."""
    folder = tmp_path_factory.mktemp("study")
    who, how = members(folder)
    for subject in who[:3]:
        supervise(subject, how)
    manifest = read_manifest(how.result("sub-1"))
    manifest |= {"status": "NEEDS REVIEW", "notes": [{"id": "B43", "text": "no tumor found <i>"}]}
    (how.result("sub-1") / "report.html").write_text(page, encoding="utf-8")
    write_manifest(how.result("sub-1"), manifest)
    (folder / "out" / "results" / ".sub-5.checkpoints").mkdir()
    return folder


@pytest.fixture
def study(tmp_path, template):
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return members(tmp_path)


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
    assert rows[2]["reason"] == "E5-B23 no signal in T1c | file: the T1c"
    assert rows[3]["code"] == "3"


def test_the_page_shows_pictures_reasons_and_nothing_from_outside(study):
    who, how = study
    write_group(who, how)
    with open(f"{how.out}/group.html", encoding="utf-8") as file:
        page = file.read()
    assert page.count("data:image/jpeg;base64,") == 3
    assert "no tumor found &lt;i&gt;" in page
    assert "T1c: no such file | found: &lt;b&gt;" in page
    assert "JANE" not in page
    assert re.findall(r'(?:src|href)="(?!data:|#|results/sub-)([^"]*)"', page) == []
    assert "its report cannot be read" in page  # sub-2 has none
    assert "http" not in page.replace("http-equiv", "")


def test_a_newer_failure_is_told_before_an_older_result(study):
    who, how = study
    write_record(
        who[0], how, Outcome("sub-1", "failed", 12, "E12-B57 the output folder holds something else")
    )
    assert summary(who[0], how)["state"] == "failed"
    (how.result("sub-2") / "run.json").unlink()
    assert summary(who[1], how)["reason"] == "its result is missing"


def test_an_unusual_organ_is_found_and_tumors_never_are():
    def row(eye, gtv):
        return {"volumes": {"Eye_L": {"outlined_cm3": eye}, "GTV": {"outlined_cm3": gtv}}}

    rows = [row(8 + 0.1 * n, 10.0) for n in range(9)] + [row(4.0, 90.0), {"volumes": {}}]
    mark_unusual(rows)
    assert [len(r["unusual"]) for r in rows] == [0] * 9 + [1, 0]
    assert rows[9]["unusual"] == [{"name": "Eye_L", "cm3": 4.0, "median": 8.35}]
    few = [row(8.0, 1.0), row(8.1, 1.0), row(1.0, 1.0)]
    mark_unusual(few)
    assert not any(r["unusual"] for r in few)


def change(how, **more):
    path = how.result("sub-1") / "run.json"
    path.write_text(seal(json.loads(path.read_text()) | more))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {
    "manifest cut": lambda how: cut(how.result("sub-1") / "run.json"),
    "manifest empty": lambda how: (how.result("sub-1") / "run.json").write_text(""),
    "manifest a list": lambda how: (how.result("sub-1") / "run.json").write_text("[1]"),
    "manifest nested": lambda how: (how.result("sub-1") / "run.json").write_text("[" * 20_000),
    "manifest Latin-1": lambda how: (how.result("sub-1") / "run.json").write_bytes(b'{"status": "\xe4"}'),
    "no status": lambda how: change(how, status=None),
    "status a list": lambda how: change(how, status=["OK"]),
    "notes a text": lambda how: change(how, notes="none"),
    "a note without id": lambda how: change(how, notes=[{"text": "x"}]),
    "inputs of numbers": lambda how: change(how, inputs=[1, 2]),
    "seconds a text": lambda how: change(how, seconds={"fit": "long"}),
    "volumes a table": lambda how: change(how, volumes={"GTV": 1}),
    "a volume of NaN": lambda how: change(how, volumes=[VOLUME | {"mean_cm3": float("nan")}]),
    "a volume of 1e308": lambda how: change(how, volumes=[VOLUME | {"p95_cm3": 1e308}]),
    "a formula as a name": lambda how: change(how, volumes=[VOLUME | {"name": "@SUM(A1)"}]),
    "a volume without limits": lambda how: change(how, volumes=[{"name": "GTV", "mean_cm3": 1.0}]),
    "a listed file changed": lambda how: (how.result("sub-1") / "segmentation.nii.gz").write_text("other"),
}
VOLUME = {
    "name": "GTV", "outlined_cm3": 2.0, "mean_cm3": 2.0, "sd_cm3": 0.5, "p05_cm3": 1.0, "p95_cm3": 3.0,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_subject_is_listed_as_failed_and_keeps_nobody_else_out(study, damage):
    who, how = study
    DAMAGES[damage](how)
    assert write_group(who, how) == {"done": 1, "failed": 3, "interrupted": 1, "not run": 1}
    first, second = read(how)[:2]
    assert (first["state"], second["state"]) == ("failed", "done")
    assert first["reason"].startswith(("E3-", "E12-"))
    assert f"E{first['code']}-" in first["reason"]
    with open(f"{how.out}/group.html", encoding="utf-8") as file:
        assert first["reason"].partition(" | ")[0] in file.read()


REPORTS = {
    "cut": lambda page: page[: page.index('"pictures":') + 100],
    "no report": lambda page: "<html>",
    "data not JSON": lambda page: page.replace('"pictures":[', '"pictures":[{', 1),
    "pictures a number": lambda page: with_pictures(5),
    "pictures of numbers": lambda page: with_pictures([1, 2]),
    "no picture": lambda page: with_pictures([{"contrast": "T1c", "plane": "axial"}]),
    "a picture that is none": lambda page: with_pictures(
        [{"contrast": "T1c", "plane": "axial", "png": "AAAA"}]
    ),
    "a picture that is huge": lambda page: with_pictures(
        [{"contrast": "T1c", "plane": "axial", "png": HUGE}]
    ),
    "deep": lambda page: f'<script type="application/json" id="data">{"[" * 100_000}</script>',
}


def with_pictures(pictures):
    return f'<script type="application/json" id="data">{json.dumps({"pictures": pictures})}</script>'


def huge_png():
    """A PNG of a few bytes that says it is 60,000 pixels wide and high."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return base64.b64encode(head).decode()


HUGE = huge_png()


@pytest.mark.parametrize("damage", REPORTS)
def test_a_damaged_report_costs_its_pictures_only(study, page, damage):
    who, how = study
    manifest = read_manifest(how.result("sub-1"))
    (how.result("sub-1") / "report.html").write_text(REPORTS[damage](page), encoding="utf-8")
    write_manifest(how.result("sub-1"), manifest)
    assert write_group(who, how)["done"] == 2
    assert read(how)[0]["flags"] == "B43;report"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"state": 5}', b'{"state": "done", "name": []}', b"\xff", b"[" * 20_000]
)
def test_a_damaged_record_is_passed_over(study, content):
    who, how = study
    how.log("sub-1", ".json").write_bytes(content)
    assert write_group(who, how)["done"] == 2


def test_no_escape_sequence_and_no_formula_gets_into_the_summary(study):
    who, how = study
    change(how, notes=[{"id": "=1+1", "text": "\x1b[2J"}])
    write_record(who[2], how, Outcome("sub-3", "failed", 5, "=cmd|' /C calc'!A0\t\x1b[31m\u202e"))
    write_group(who, how)
    with open(f"{how.out}/group.tsv", encoding="utf-8") as file:
        text = file.read()
    assert all(c.isprintable() or c in "\t\n" for c in text)
    rows = read(how)
    assert rows[0]["flags"] == "'=1+1"
    assert rows[2]["reason"].startswith("'=cmd")
    with open(f"{how.out}/group.html", encoding="utf-8") as file:
        assert "\x1b" not in file.read()
