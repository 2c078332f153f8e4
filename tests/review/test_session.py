"""A review: every stroke is on disk, undo restores the bits, the automatic result stays."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_result import small_result

from tumoar.app.calibrate import conditions_of
from tumoar.io.manifest import digest_files, read_manifest
from tumoar.io.outputs import require_place
from tumoar.model.calibration import NOWHERE
from tumoar.result.folder import Options, write_result
from tumoar.review.session import RECORD, Session
from tumoar.review.strokes import from_runs, to_runs
from tumoar.vocabulary.errors import BusyError, IntegrityError, UsageError

SPOT = np.array([[3, 4, 5], [3, 4, 6], [4, 4, 6]])


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    out = tmp_path_factory.mktemp("session") / "out"
    write_result(out, small_result(), [], {"reference": "T1c"}, Options(), lambda manifest: "", [])
    return out


@pytest.fixture
def folder(template, tmp_path):
    return shutil.copytree(template, tmp_path / "out")


def test_runs_hold_every_voxel_of_a_stroke():
    rng = np.random.default_rng(0)
    for shape in ((3, 4, 5), (1, 1, 7), (20, 2, 9)):
        some = np.argwhere(rng.random(shape) < 0.4)
        assert np.array_equal(from_runs(to_runs(some[::-1], shape), shape), some)
    assert to_runs(np.array([[0, 0, 1], [0, 0, 2], [1, 0, 0]]), (2, 1, 3)) == [1, 3]


def test_a_stroke_is_seen_by_every_session_and_undone_bit_by_bit(folder):
    one, other = Session.open(folder), Session.open(folder)
    before = {name: one.mask(name) for name in one.names}
    stroke = one.paint("GTV", True, SPOT, "ABC")
    assert (stroke.id, stroke.who) == (1, "ABC")
    assert other.mask("GTV")[tuple(SPOT.T)].all()
    assert other.revision == one.revision
    assert other.can_undo
    assert not other.can_redo
    assert other.volume("GTV").outlined == pytest.approx(one.mask("GTV").sum() / 1000)
    other.undo()
    assert all(np.array_equal(one.mask(name), before[name]) for name in one.names)
    one.redo()
    assert other.mask("GTV")[tuple(SPOT.T)].all()
    assert [s.id for s in other.strokes] == [1]
    other.paint("GTV", False, SPOT[:1])
    assert not one.mask("GTV")[tuple(SPOT[0])]
    assert one.mask("GTV")[tuple(SPOT[1])]
    assert not one.can_redo
    assert all(np.array_equal(one.automatic(name), before[name]) for name in one.names)


def test_what_a_structure_gains_others_lose(folder):
    session = Session.open(folder)
    tumor = np.argwhere(session.mask("GTV"))[:4]
    session.paint("Edema", True, tumor)
    assert not session.mask("GTV")[tuple(tumor.T)].any()
    stem = np.argwhere(session.mask("Brain"))[:4]
    session.paint("Brainstem", True, stem)
    session.paint("GTV", True, stem)
    assert session.mask("Brainstem")[tuple(stem.T)].all()  # tumor covers anatomy, and does not cut it
    session.paint("Hippocampus_L", True, stem)
    assert not session.mask("Brainstem")[tuple(stem.T)].any()
    assert session.mask("Brain")[tuple(stem.T)].all()
    session.paint("Brain", False, stem)
    assert not session.mask("Hippocampus_L")[tuple(stem.T)].any()


def test_the_automatic_result_stays_valid_and_a_review_is_never_overwritten(folder):
    before = digest_files(folder)
    session = Session.open(folder)
    session.paint("GTV", True, SPOT)
    session.approve("ABC", "looks right")
    read_manifest(folder)
    after = digest_files(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {RECORD}
    with pytest.raises(IntegrityError, match="reviewed"):
        require_place(folder, overwrite=True)
    assert digest_files(folder) == after


def test_a_review_begun_while_a_new_result_is_computed_is_not_lost(folder):
    """`segment --overwrite` looks at the folder before it computes, and replaces it minutes later."""
    require_place(folder, overwrite=True)
    session = Session.open(folder)
    session.paint("GTV", True, SPOT)
    before = digest_files(folder)
    with pytest.raises(IntegrityError, match="reviewed"):
        write_result(folder, small_result(tumor=False), [], {}, Options(), lambda manifest: "", [])
    assert digest_files(folder) == before
    assert [p.name for p in folder.parent.iterdir() if ".lock" not in p.name] == ["out"]


def test_strokes_on_a_result_that_was_replaced_meanwhile_are_refused(folder):
    session = Session.open(folder)
    write_result(folder, small_result(tumor=False), [], {"reference": "T1c"}, Options(), lambda m: "", [])
    assert not session.is_current
    for change in (lambda: session.paint("GTV", True, SPOT), session.undo, lambda: session.approve("ABC")):
        with pytest.raises(IntegrityError, match="replaced"):
            change()
    assert not (folder / "review").exists(), "nothing begins in the folder of the new result"
    Session.open(folder).paint("GTV", True, SPOT)


def test_no_stroke_is_lost_when_many_paint_at_once(folder):
    sessions = [Session.open(folder) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        voxels = [np.array([[i, 2, 3]]) for i in range(20)]
        painted = list(pool.map(lambda i: sessions[i % 4].paint("GTV", True, voxels[i]), range(20)))
    assert sorted(s.id for s in painted) == list(range(1, 21))
    assert all(session.mask("GTV")[:20, 2, 3].all() for session in sessions)


def test_a_line_that_a_power_cut_left_is_dropped(folder):
    session = Session.open(folder)
    session.paint("GTV", True, SPOT)
    whole = (folder / RECORD).read_bytes()
    for rest in (b'{"what":"str', b"\0\0\0\0", whole.splitlines()[-1][:-3]):
        (folder / RECORD).write_bytes(whole + rest)
        again = Session.open(folder)
        assert len(again.strokes) == 1
        again.paint("GTV", False, SPOT)
        assert len(Session.open(folder).strokes) == 2
        assert (folder / RECORD).read_bytes().startswith(whole + b"{")


def test_a_record_that_was_tampered_with_is_refused(folder):
    session = Session.open(folder)
    for _ in range(3):
        session.paint("GTV", True, SPOT, "ABC")
    lines = (folder / RECORD).read_text().splitlines(keepends=True)
    changed = [lines[0], lines[1].replace("ABC", "XYZ"), *lines[2:]]
    for bad in (changed, lines[:1] + lines[2:], [*lines[:2], "junk\n"], lines[1:]):
        (folder / RECORD).write_text("".join(bad))
        with pytest.raises(IntegrityError, match="changed after it was written"):
            Session.open(folder)
        with pytest.raises(IntegrityError):
            session.paint("GTV", True, SPOT)
        assert (folder / RECORD).read_text() == "".join(bad)


def test_a_record_of_another_result_is_refused(folder, tmp_path):
    Session.open(folder).paint("GTV", True, SPOT)
    other = tmp_path / "other"
    write_result(other, small_result(tumor=False), [], {"reference": "T1c"}, Options(), lambda m: "", [])
    (other / "review").mkdir()
    (folder / RECORD).rename(other / RECORD)
    with pytest.raises(IntegrityError, match="another result"):
        Session.open(other)


@pytest.mark.parametrize(
    "voxels",
    [[], [[1, 2]], [[1.5, 2.0, 3.0]], [[-1, 0, 0]], [[0, 0, 10_000]], [1, 2, 3], [["a", "b", "c"]]],
    ids=str,
)
def test_a_stroke_that_is_none_is_refused_and_not_recorded(folder, voxels):
    session = Session.open(folder)
    with pytest.raises(UsageError):
        session.paint("GTV", True, voxels)
    assert not (folder / RECORD).exists()
    assert not session.can_undo


def test_what_is_approved_is_what_was_seen(folder):
    session, other = Session.open(folder), Session.open(folder)
    seen = session.revision
    other.paint("GTV", True, SPOT)
    with pytest.raises(BusyError, match="changed meanwhile"):
        session.approve("ABC", revision=seen)
    assert session.approved is None
    session.approve("ABC", revision=session.revision)
    assert session.approved["who"] == "ABC"


def test_a_first_approval_needs_no_change(folder):
    session = Session.open(folder)
    session.approve("ABC", revision=session.revision)
    assert session.approved["who"] == "ABC"


def test_an_organ_shows_again_where_tumor_was_removed(folder, tmp_path):
    session = Session.open(folder)
    some = np.argwhere(session.mask("GTV"))[:50]
    session.paint("Brainstem", True, some)
    session.paint("GTV", False, some)
    session.export(tmp_path / "export")
    found = Session.open(tmp_path / "export")
    assert found.mask("Brainstem")[tuple(some.T)].all()
    (index,) = (s.index for s in found.result.table.structures if s.name == "brainstem")
    assert (np.asarray(found.result.labels)[tuple(some.T)] == index).all()


def test_no_calibration_is_learned_from_corrected_outlines(tmp_path):
    about = {"reference": "T1c", "conditions": {"tumor": "a" * 64, "organs": "b" * 64}}
    write_result(tmp_path / "out", small_result(), [], about, Options(), lambda manifest: "", [])
    session = Session.open(tmp_path / "out")
    session.paint("GTV", True, SPOT)
    session.export(tmp_path / "export")
    assert conditions_of(read_manifest(tmp_path / "export")) == NOWHERE


def test_what_else_is_not_possible(folder):
    session = Session.open(folder)
    with pytest.raises(UsageError, match="no such structure"):
        session.paint("Nose", True, SPOT)
    with pytest.raises(UsageError, match="initials"):
        session.approve("", "")
    session.undo()
    assert not session.strokes
    assert not session.can_undo


def test_an_approval_ends_with_the_next_change(folder):
    session = Session.open(folder)
    session.paint("GTV", True, SPOT)
    session.approve("ABC", "fine")
    assert (session.approved["who"], session.approved["comment"]) == ("ABC", "fine")
    session.undo()
    assert session.approved is None
    assert [json.loads(line)["what"] for line in (folder / RECORD).read_text().splitlines()] == [
        "begin",
        "stroke",
        "approve",
        "undo",
    ]
