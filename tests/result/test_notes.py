"""A note on its way: from the images to run.json, the stored result, the report and its data."""

import json
from dataclasses import replace
from functools import partial

import pytest
from small_result import small_result

from tumoar import load_result
from tumoar.app.publish import render_report
from tumoar.io.manifest import read_manifest, write_manifest
from tumoar.report import read_page, render
from tumoar.result.checks import review
from tumoar.result.folder import Options, status, write_result
from tumoar.vocabulary.case_name import CaseName
from tumoar.vocabulary.notes import Note

FROM_IMAGES = Note("B20", "thick slices: 7 mm", where="T1c")
FROM_PLACEMENT = Note("swapped", "gray is brighter", action="check whether <T1> and T2 were swapped")


@pytest.fixture(scope="module")
def result():
    found = small_result()
    return replace(
        found,
        case=replace(found.case, notes=(FROM_IMAGES,)),
        placement=replace(found.placement, notes=(FROM_PLACEMENT,)),
    )


def test_review_passes_notes_on_as_they_are(result):
    notes = review(result)
    assert notes[0] is FROM_PLACEMENT
    assert FROM_IMAGES in notes


def test_from_the_images_to_the_report(tmp_path, result):
    notes = (*review(result), Note("B46", "2 images, run-1 used", level="info", where="FLAIR"))
    page = partial(render_report, result, False, case_name=CaseName())
    write_result(tmp_path / "out", result, notes, {"key": "k"}, Options(), page, [])
    assert read_manifest(tmp_path / "out")["notes"] == [note.to_dict() for note in notes]
    stored = load_result(tmp_path / "out")
    assert stored.notes == notes
    data = read_page(tmp_path / "out" / "report.html")
    assert [Note.from_dict(row) for row in data["notes"]] == list(notes)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "T1c: thick slices: 7 mm <code>B20</code></p>" in page
    assert "gray is brighter <code>swapped</code></p>" in page
    assert '<p class="action">Check whether &lt;T1&gt; and T2 were swapped.</p>' in page


def test_notes_for_information_leave_the_status_ok():
    assert status([Note("B46", "2 images, run-1 used", level="info")]) == "OK"
    assert status([FROM_IMAGES]) == "NEEDS REVIEW"


def test_a_result_of_an_older_version_is_read_and_shown(tmp_path, result):
    page = partial(render_report, result, False, case_name=CaseName())
    write_result(tmp_path / "out", result, (FROM_IMAGES,), {"key": "k"}, Options(), page, [])
    old = [{"id": "B20", "text": "T1c: thick slices: 7 mm"}]
    data = read_page(tmp_path / "out" / "report.html") | {"notes": old}
    (tmp_path / "out" / "report.html").write_text(render(data), encoding="utf-8")
    write_manifest(tmp_path / "out", read_manifest_unchecked(tmp_path / "out") | {"notes": old})
    stored = load_result(tmp_path / "out")
    assert stored.notes == (Note("B20", "T1c: thick slices: 7 mm"),)
    assert stored.status == "NEEDS REVIEW"
    stored.report(tmp_path / "again.html")
    page = (tmp_path / "again.html").read_text(encoding="utf-8")
    assert "T1c: thick slices: 7 mm <code>B20</code></p>" in page


def read_manifest_unchecked(folder):
    manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    del manifest["digest"]
    return manifest
