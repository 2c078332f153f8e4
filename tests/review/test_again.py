"""Sampling again: strokes stay, more than they follow, and nothing changes far from them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import small_head
from small_run import CONFIG, finished

from tumoar.geometry.image import Grid
from tumoar.io.manifest import digest_files, read_manifest
from tumoar.io.nifti import read_nifti
from tumoar.model.calibration import Calibration, Conditions, Entry
from tumoar.model.expert import Learned
from tumoar.result.folder import Options, write_result
from tumoar.result.native import deliver
from tumoar.review.again import CancelledError, automatic_states
from tumoar.review.session import RECORD, Session
from tumoar.vocabulary.errors import IntegrityError, OutputError, UsageError

N = small_head.SIZE


def oblique() -> Grid:
    """Slices of 2 mm, stored backwards with the axes in another order, and tilted."""
    turn = np.eye(4)
    c, s = np.cos(0.15), np.sin(0.15)
    turn[1:3, 1:3] = [[c, -s], [s, c]]
    scale = np.diag([2.0, -1.0, 1.0, 1.0])
    order = np.eye(4)[:, [2, 0, 1, 3]]
    affine = turn @ order.T @ scale
    grid = Grid((N // 2, N, N), affine)
    affine = affine.copy()
    affine[:3, 3] += (N - 1) / 2 - grid.world((np.array(grid.shape) - 1) / 2)
    return Grid(grid.shape, affine)


@pytest.fixture(scope="module")
def result():
    return finished()


@pytest.fixture(scope="module", params=["own", pytest.param("oblique", marks=pytest.mark.slow)])
def made(request, result, tmp_path_factory):
    if request.param == "oblique":
        given = result.case.input("T1c")
        inputs = (replace(given, grid=oblique(), orientation="SRA"), *result.case.inputs[1:])
        result = replace(result, case=replace(result.case, inputs=inputs))
    out = tmp_path_factory.mktemp(request.param) / "out"
    about = {"reference": "T1c", "config": CONFIG.model_dump(mode="json"), "key": "k"}
    write_result(out, result, [], about, Options(), lambda manifest: "", [])
    return out


@pytest.fixture
def folder(made):
    yield made
    shutil.rmtree(made / "review", ignore_errors=True)
    shutil.rmtree(made.with_name("corrected"), ignore_errors=True)


def disk(session, center, radius, axis=2):
    """Voxels of a disk in a slice, mm."""
    away = (np.indices(session.grid.shape).T - center) * session.grid.spacing
    near = np.linalg.norm(np.delete(away, axis, -1), axis=-1) <= radius
    return np.argwhere((near & (away[..., axis] == 0)).T)


def middle(mask):
    return np.argwhere(mask).mean(0).round().astype(int)


def test_a_result_is_delivered_as_its_states_say(made, result):
    session = Session.open(made)
    states = automatic_states(session.result)
    for name in ("GTV", "Edema"):
        assert np.array_equal(states == {"GTV": 4, "Edema": 2}[name], session.automatic(name))
    assert deliver(result, "T1c").votes.z.sum() > 0


def test_strokes_stay_others_follow_and_nothing_changes_far_away(folder):
    before = digest_files(folder)
    session = Session.open(folder)
    edema = session.mask("Edema")
    center = middle(session.mask("GTV"))
    voxels = disk(session, center, 7)
    session.paint("GTV", True, voxels)
    added = int((~session.automatic("GTV")[tuple(voxels.T)]).sum())
    assert added > 10
    seen = []
    names = session.sample_again(seen.append)
    assert seen[-1] == 1.0 and seen == sorted(seen)  # noqa: PT018
    assert {"GTV", "Edema"} <= set(names)
    gtv = session.mask("GTV")
    assert gtv[tuple(voxels.T)].all()
    grown = gtv & ~session.automatic("GTV")
    own = np.zeros_like(gtv)
    own[tuple(voxels.T)] = True
    assert (grown & ~own).sum() > 0.3 * added, "a disk becomes thicker than a slice"
    assert not (gtv & session.mask("Edema")).any()
    away = np.linalg.norm((np.indices(gtv.shape).T - center) * session.grid.spacing, axis=-1).T
    assert np.array_equal(gtv[away > 20], session.automatic("GTV")[away > 20])
    assert np.array_equal(session.mask("Edema")[away > 20], edema[away > 20])
    for name in set(session.names) - {"GTV", "Edema"}:
        assert np.array_equal(session.mask(name), session.automatic(name))
    found = session.volume("GTV")
    assert found.outlined == pytest.approx(gtv.sum() * session.grid.voxel_volume / 1000, abs=1e-3)
    assert np.isfinite(found.mean)
    after = digest_files(folder)
    assert {name: after[name] for name in before} == before
    read_manifest(folder)

    first = {name: session.mask(name) for name in session.names}
    part = voxels[: len(voxels) // 3]
    session.paint("GTV", False, part)
    session.sample_again()
    assert not session.mask("GTV")[tuple(part.T)].any()
    rest = {tuple(v) for v in voxels.tolist()} - {tuple(v) for v in part.tolist()}
    assert all(session.mask("GTV")[v] for v in rest), "earlier strokes stay as well"
    session.undo()
    session.undo()
    assert all(np.array_equal(Session.open(folder).mask(name), first[name]) for name in session.names)
    session.undo()
    session.undo()
    assert all(np.array_equal(session.mask(n), session.automatic(n)) for n in session.names)


@pytest.mark.slow
def test_the_same_strokes_give_the_same_bits(folder):
    found = []
    for _ in range(2):
        shutil.rmtree(folder / "review", ignore_errors=True)
        session = Session.open(folder)
        session.paint("GTV", False, disk(session, middle(session.mask("GTV")), 4))
        session.sample_again()
        found.append(session.mask("GTV"))
    assert np.array_equal(*found)


def test_cancelled_sampling_changes_nothing(folder):
    session = Session.open(folder)
    session.paint("Edema", True, disk(session, middle(session.mask("GTV")), 4))
    lines = (folder / RECORD).read_bytes()
    with pytest.raises(CancelledError):
        session.sample_again(cancelled=lambda: True)
    assert (folder / RECORD).read_bytes() == lines
    assert [p.name for p in (folder / "review").iterdir()] == ["record.jsonl"]
    session.undo()
    assert session.sample_again() == ()


@pytest.mark.slow
def test_a_stroke_painted_while_sampling_is_not_lost(folder):
    session, other = Session.open(folder), Session.open(folder)
    spot = np.argwhere(session.mask("Brain") & ~session.mask("GTV") & ~session.mask("Edema"))[:1]
    session.paint("GTV", False, disk(session, middle(session.mask("GTV")), 3))
    painted = []

    def paint(done):
        if not painted:
            painted.append(other.paint("GTV", True, spot))

    session.sample_again(paint)
    assert session.mask("GTV")[tuple(spot[0])]
    assert len(session.strokes) == 2
    session.undo()  # the sampling
    session.undo()  # the stroke painted meanwhile
    assert not session.mask("GTV")[tuple(spot[0])]


@pytest.mark.slow
def test_strokes_outside_the_head_are_taken_as_drawn(folder):
    session = Session.open(folder)
    session.paint("GTV", True, np.array([[0, 0, 0], [0, 0, 1]]))
    session.sample_again()
    assert session.mask("GTV")[0, 0, :2].all()


def test_what_sampling_left_is_checked(folder):
    session = Session.open(folder)
    session.paint("GTV", True, disk(session, middle(session.mask("GTV")), 4))
    session.sample_again()
    (path,) = (folder / "review").glob("sampled-*")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for harm in (lambda: None, path.unlink):
        harm()
        with pytest.raises(IntegrityError, match="missing or was changed"):
            Session.open(folder).mask("GTV")


def test_a_result_of_an_earlier_version_takes_what_is_drawn(folder, tmp_path):
    manifest = read_manifest(folder)
    files = {k: v for k, v in manifest["files"].items() if k != "state.npz"}
    session = Session(replace(Session.open(folder).result, manifest=manifest | {"files": files}))
    assert not session.can_sample
    assert "earlier version" in session.why_not
    session.paint("GTV", True, np.array([[1, 1, 1]]))
    with pytest.raises(UsageError, match="earlier version"):
        session.sample_again()
    assert session.mask("GTV")[1, 1, 1]


@pytest.mark.slow
def test_a_corrected_organ_follows_beyond_the_slice(folder):
    session = Session.open(folder)
    center = middle(session.mask("Brain"))
    ball = np.linalg.norm((np.indices(session.grid.shape).T - center) * session.grid.spacing, axis=-1).T <= 6
    session.paint("Brainstem", True, np.argwhere(ball))
    session.sample_again()
    before = session.mask("Brainstem")
    away = disk(session, center + np.array([0, 4, 0]), 5)
    session.paint("Brainstem", True, away)
    assert session.sample_again() == ("Brainstem",)
    after = session.mask("Brainstem")
    assert after[tuple(away.T)].all()
    assert after[before].all()
    grown = np.argwhere(after & ~before)
    assert len(np.unique(grown[:, 2])) > 1, "the neighboring slices follow"


@pytest.mark.slow
def test_a_sampling_that_was_killed_before_it_was_recorded_is_done_again(folder):
    session = Session.open(folder)
    session.paint("GTV", True, disk(session, middle(session.mask("GTV")), 4))
    number = session.revision + 1
    for left in (f"sampled-{number:04}.npz", f".sampled-{number:04}.npz.0123"):
        (folder / "review" / left).write_bytes(b"half")
    drawn = session.mask("GTV")
    again = Session.open(folder)
    assert np.array_equal(again.mask("GTV"), drawn)
    again.sample_again()
    assert np.array_equal(Session.open(folder).mask("GTV"), again.mask("GTV"))


@pytest.mark.slow
def test_a_full_disk_refuses_the_sampling_and_keeps_the_strokes(folder, monkeypatch):
    session = Session.open(folder)
    session.paint("GTV", True, disk(session, middle(session.mask("GTV")), 4))
    lines = (folder / RECORD).read_bytes()

    def full(path, *rest):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        with pytest.raises(OutputError, match="cannot write"):
            session.sample_again()
    assert (folder / RECORD).read_bytes() == lines
    session.sample_again()
    assert (folder / RECORD).read_bytes().startswith(lines)
    assert len(Session.open(folder).strokes) == len(session.strokes)
    assert (folder / RECORD).stat().st_size > len(lines), "the sampling is recorded"


@pytest.mark.slow
def test_an_organ_that_was_erased_wholly_is_exported_as_empty(folder):
    session = Session.open(folder)
    ball = disk(session, middle(session.mask("Brain")), 5)
    session.paint("Brainstem", True, ball)
    session.sample_again()
    session.paint("Brainstem", False, np.argwhere(session.mask("Brainstem")))
    session.sample_again()
    assert not session.mask("Brainstem").any()
    out = folder.with_name("corrected")
    session.export(out)
    assert not Session.open(out).mask("Brainstem").any()
    assert Session.open(out).volume("Brainstem").outlined == 0


def test_intervals_of_corrected_outlines_were_calibrated_on_uncorrected_ones(result, tmp_path):
    numbers = Learned(tuple(np.linspace(-0.8, 0.6, 15)), 0.3, 0.2, 5.0)
    entry = Entry("patients", ("FLAIR", "T1c"), "a" * 64, {"core": numbers})
    known = replace(result, calibration=Calibration("2026-01-01", (entry,)), conditions=Conditions("a" * 64))
    about = {"reference": "T1c", "config": CONFIG.model_dump(mode="json"), "key": "k"}
    write_result(tmp_path / "out", known, [], about, Options(), lambda manifest: "", [])
    session = Session.open(tmp_path / "out")
    assert session.volume("GTV").calibrated_on == "15 patients"
    session.paint("GTV", True, disk(session, middle(session.mask("GTV")), 6))
    assert not session.volume("GTV").predicted
    session.sample_again()
    found = session.volume("GTV")
    assert found.calibrated_on == "uncorrected outlines of 15 patients"
    low, high = found.interval()
    assert low <= found.outlined <= high


def test_export_of_reviewed_outlines(folder):
    session = Session.open(folder)
    session.paint("GTV", True, disk(session, middle(session.mask("GTV")), 6))
    session.sample_again()
    session.approve("ABC", "fine")
    out = folder.with_name("corrected")
    written = session.export(out)
    assert out / "structures/GTV.nii.gz" in written
    manifest = read_manifest(out)
    assert manifest["review"]["approved"]["who"] == "ABC"
    assert manifest["review"]["corrected"] == ["Edema", "GTV"]
    for name in session.names:
        image = read_nifti(out / "structures" / f"{name}.nii.gz")
        assert np.array_equal(np.asarray(image.data) > 0, session.mask(name))
    again = Session.open(out)
    assert again.volume("GTV").outlined == pytest.approx(session.volume("GTV").outlined, abs=1e-3)
    assert np.array_equal(automatic_states(again.result) == 4, session.mask("GTV"))
    assert not again.can_sample
    with pytest.raises(IntegrityError):
        session.export(out)
