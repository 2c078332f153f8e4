"""Corrected outlines in the files that other programs read."""

from __future__ import annotations

import numpy as np
import pytest
from pydicom import dcmread
from small_study import build

from tumoar.radiotherapy.agreement import score
from tumoar.review.session import Session


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Corrections of several structures, one of them a single voxel and one an erased organ."""
    folder = tmp_path_factory.mktemp("study")
    session = Session.open(build(folder, organs=True)[0])
    rng = np.random.default_rng(3)
    for name, inside in (("GTV", True), ("Brainstem", False), ("Edema", True), ("Brainstem", True)):
        session.paint(name, inside, np.unique(rng.integers(20, 27, (90, 3)), axis=0))
    session.paint("GTV", True, np.array([[2, 2, 2]]))
    session.paint("Eye_L", False, np.argwhere(session.mask("Eye_L")))
    session.approve("ÄÖ", "<b>")
    session.export(folder / "reviewed", reference=folder / "t1c")
    return session, folder / "reviewed"


@pytest.mark.parametrize("file", ["SEG.dcm", "RTSTRUCT.dcm"])
def test_what_was_drawn_is_read_back_to_the_voxel(exported, file):
    session, out = exported
    found = score(out, out / "dicom" / file, {}, {}).scores
    there = {name for name in session.names if session.mask(name).any()}
    assert "Eye_L" not in there
    assert found.keys() >= there
    assert {name: scores.dice for name, scores in found.items() if scores.dice < 1} == {}


def test_the_files_say_who_approved(exported):
    _, out = exported
    header = dcmread(out / "dicom" / "RTSTRUCT.dcm")
    assert (header.ApprovalStatus, str(header.ReviewerName)) == ("APPROVED", "ÄÖ")
