"""A whole run as the commands do it: published once, resumed, replaced only when told, one at a time."""

import csv
import fcntl
import re
from dataclasses import replace

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import small_head
from small_run import CONFIG, MODEL

from tumoar.app import pipeline as line
from tumoar.app.ablation import ablate_contrasts
from tumoar.app.calibrate import conditions_of
from tumoar.app.machine import limit_threads
from tumoar.app.pipeline import Given, Progress
from tumoar.app.publish import Job, execute, summarize
from tumoar.app.request import Request
from tumoar.app.segment import calibration_for
from tumoar.cli.watch import Watch
from tumoar.io.calibration import write_calibration
from tumoar.io.nifti import read_nifti
from tumoar.model.calibration import Calibration, Conditions, Entry, digest_conditions
from tumoar.model.expert import Learned
from tumoar.numerics.threads import MOST, use_threads
from tumoar.placement.affine import AffineResult
from tumoar.report import read_page
from tumoar.result.folder import Options, read_manifest
from tumoar.vocabulary.errors import BusyError, IntegrityError, OutputError, UsageError


@pytest.fixture(autouse=True, scope="module")
def known_placement():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line, "place_affine", lambda case, atlas: AffineResult(np.eye(4), {"gain": 0.5}))
        yield


def run(out, watch=None, **rest):
    job = Job(out, CONFIG, 3, **rest)
    return execute(small_head.case(), MODEL, job, watch or Watch(quiet=True))


@pytest.fixture(scope="module")
def with_samples(tmp_path_factory):
    out = tmp_path_factory.mktemp("samples") / "out"
    return out, run(out, options=Options(samples=True))


def bits(out):
    """What must be equal between runs: everything but the manifest, log and report, which tell times."""
    files = read_manifest(out)["files"]
    return {name: digest for name, digest in files.items() if name.endswith((".nii.gz", ".tsv"))}


class Interrupting(Watch):
    """Stops a run after some steps."""

    def __init__(self, after):
        super().__init__(quiet=True)
        self.left = after

    def __call__(self, progress):
        super().__call__(progress)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_the_last_words_show_the_outlined_volume_before_the_spread_of_the_samples(with_samples):
    out, result = with_samples
    watch = Watch(quiet=True)
    summarize(*result, out, watch)
    row = next(r for r in read_manifest(out)["volumes"] if r["name"] == "GTV")
    low, high = result[0].volume("GTV").spread(0.90)
    said = f"GTV {row['outlined_cm3']:.1f} cm³ (outlined); spread of the samples {low:.1f}–{high:.1f} cm³"
    assert any(line.endswith(said) for line in watch.lines), watch.lines
    assert "cm³, 90 %" not in "".join(watch.lines)


@pytest.mark.slow
def test_a_report_with_the_face_is_another_result(tmp_path):
    run(tmp_path / "out", keep_face=True)
    assert read_page(tmp_path / "out" / "report.html")["whole"]
    with pytest.raises(IntegrityError, match="E12-B57"):
        run(tmp_path / "out")
    run(tmp_path / "out", overwrite=True)
    assert not read_page(tmp_path / "out" / "report.html")["whole"]


@pytest.mark.slow
def test_a_run_is_published_resumed_and_kept(tmp_path):
    out = tmp_path / "out"
    result, _ = run(out)
    assert list(tmp_path.iterdir()) == [out]
    whole = bits(out)
    assert run(out) is None  # the same again: already done
    with pytest.raises(IntegrityError, match="E12-B57"):
        run(out, options=Options(least_cm3=1.0))
    assert bits(out) == whole

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "again", Interrupting(20))
    assert not (tmp_path / "again").exists()
    with pytest.raises(UsageError, match="E2-resume the output has an interrupted run"):
        run(tmp_path / "again")
    run(tmp_path / "again", resume=True)
    assert bits(tmp_path / "again") == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "out"]

    job = Job(out, CONFIG.model_copy(update={"gtv": "flair"}), 3)
    tumor = result.votes.z.astype(np.int8)
    ablate_contrasts(result, job, MODEL, Watch(quiet=True), Given(z=tumor))
    with open(out / "ablation.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {row["contrasts"] for row in rows} == {"T1c", "FLAIR"}
    targets = [row for row in rows if row["name"] == "GTV"]
    assert {row["made_of"] for row in targets} == {"whole T2/FLAIR abnormality"}
    # the tumor is given, so it is the same with every subset, and compared with the whole tumor
    assert all(float(row["dice_with_all"]) == 1 for row in targets)
    assert all(row["made_of"] == "" for row in rows if row["name"] != "GTV")
    assert "ablation.tsv" in read_manifest(out)["files"]


def test_samples_are_written_when_asked_for(with_samples):
    out, (result, _) = with_samples
    folder = out / "samples"
    numbers = [f"sample_{n:03}" for n in range(1, 11)]
    assert {p.name for p in folder.iterdir()} == {
        f"{n}{part}.nii.gz" for n in numbers for part in ("", "_anatomy")
    }
    paths = [folder / f"{n}.nii.gz" for n in numbers]
    core = next(t.index for t in result.table.tumor if t.name == "core")
    counts = [int((read_nifti(p).data == core).sum()) for p in paths]
    assert counts == [int(row[-1]) for row in result.tally.volumes]


def test_every_step_is_told_when_asked_for(capfd):
    for verbose in (False, True):
        with Watch(verbose=verbose) as watch:
            for done in range(1, 41):
                watch(Progress("sample", done, 40, {"GTV": 1.0}))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 11 + 40
    assert "sampling (Algorithm 1) 40/40  GTV 1" in lines[-1]


def test_threads_are_those_of_simpleitk_too():
    before = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    try:
        assert limit_threads(1) == 1
        assert sitk.ProcessObject.GetGlobalDefaultNumberOfThreads() == 1
    finally:
        use_threads(MOST)
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(before)


def test_one_at_a_time(tmp_path):
    with open(tmp_path / ".out.lock", "w", encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="E11-B59"):
            run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="E9-B58"):
        run(tmp_path / "file" / "out")


NUMBERS = Learned(tuple(np.linspace(-0.8, 0.6, 15)), 0.3, 0.2, 5.0)


def calibrated(conditions, *names, cases="patients"):
    entry = Entry(cases, ("FLAIR", "T1c"), conditions, dict.fromkeys(names or ("core", "whole"), NUMBERS))
    return Calibration("2026-01-01", (entry,))


def test_a_calibrated_result_says_so_and_is_another_result(tmp_path):
    watch, holds = Watch(quiet=True), Conditions("a" * 64, "b" * 64)
    both = calibrated(holds.tumor).entries + calibrated(holds.organs, "Brain", cases="heads").entries
    done = run(tmp_path / "out", watch, calibration=Calibration("2026-01-01", both), conditions=holds)
    summarize(*done, tmp_path / "out", watch)
    said = "\n".join(watch.lines)
    for name in ("GTV", "whole tumor"):
        assert re.search(
            rf"{name} [\d.]+ cm³ \(outlined\); 90 % prediction interval \(calibrated on 15", said
        )
    assert re.search(r"Edema [\d.]+ cm³ \(outlined\); spread of the samples", said)
    assert re.search(
        r"Brain [\d.]+ cm³ \(outlined\); 90 % prediction interval \(calibrated on 15 heads\)", said
    )
    assert "Brainstem" not in said
    assert conditions_of(read_manifest(tmp_path / "out")) == holds
    with pytest.raises(IntegrityError, match="E12-B57"):
        run(tmp_path / "out")


def test_a_calibration_must_hold_for_the_run(tmp_path):
    case, names = small_head.case(), [c.name for c in small_head.case().contrasts]
    holds = digest_conditions(MODEL.sha256, CONFIG.model_dump(mode="json"), names)
    request = Request(case=case, calibration=tmp_path / "own.json")
    write_calibration(tmp_path / "own.json", calibrated(holds.tumor))
    found, conditions = calibration_for(request, MODEL, CONFIG, case, is_plain=True)
    assert found.find("core", conditions) is not None
    assert found.find("Brain", conditions) is None  # the file of a clinic has no organs
    for changed, is_plain in ((CONFIG.model_copy(update={"chains": 2}), True), (CONFIG, False)):
        with pytest.raises(UsageError, match="E2-calibration the calibration was made with another model"):
            calibration_for(request, MODEL, changed, case, is_plain=is_plain)
    found, conditions = calibration_for(Request(case=case), MODEL, CONFIG, case, is_plain=True)
    assert found.find("core", conditions) is None


def test_no_calibration_holds_for_a_contrast_that_the_user_defined_otherwise():
    case = small_head.case()
    request = Request(case=case)
    _, usual = calibration_for(request, MODEL, CONFIG, case, is_plain=True)
    rows = (replace(case.contrasts[0], constraints=()), *case.contrasts[1:])
    _, found = calibration_for(request, MODEL, CONFIG, replace(case, contrasts=rows), is_plain=True)
    assert found.tumor != usual.tumor
    assert found.organs != usual.organs


def test_organs_stay_calibrated_with_other_numbers_of_sweeps(tmp_path):
    case, names = small_head.case(), [c.name for c in small_head.case().contrasts]
    settings = CONFIG.model_dump(mode="json")
    holds = digest_conditions(MODEL.sha256, settings, names)
    write_calibration(tmp_path / "own.json", calibrated(holds.organs, "Brain", cases="heads"))
    request = Request(case=case, calibration=tmp_path / "own.json")
    sweeps = CONFIG.gibbs.model_copy(update={"burn_in": 3, "samples": 2})
    fewer = CONFIG.model_copy(update={"gibbs": sweeps})
    found, conditions = calibration_for(request, MODEL, fewer, case, is_plain=True)
    assert found.find("Brain", conditions) is not None
    other = CONFIG.model_copy(update={"gibbs": CONFIG.gibbs.model_copy(update={"nodes_every": 2})})
    with pytest.raises(UsageError, match="E2-calibration"):
        calibration_for(request, MODEL, other, case, is_plain=True)
