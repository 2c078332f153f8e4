"""`tumoar train shape` and `tumoar train combine` on masks made here."""

from __future__ import annotations

from inspect import signature

import nibabel as nib
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tumoar.cli import train_shape
from tumoar.cli.train_shape import combine, read_shapes, shape, tumor_volumes
from tumoar.io.shapes import section_shape
from tumoar.io.store import load_sections
from tumoar.train import shape as training
from tumoar.vocabulary.errors import GeometryError, IntegrityError, UnreadableFileError, UsageError


@pytest.fixture
def masks(tmp_path):
    paths = []
    for n in range(3):
        x = np.indices((34, 34, 34)) - 17
        r = np.sqrt((x**2).sum(0))
        labels = (r < 14).astype(np.uint8) + (r < 9 - n)
        paths.append(tmp_path / f"p{n}-000.nii.gz")
        nib.save(nib.Nifti1Image(labels, np.eye(4)), paths[-1])
    return paths


def test_training_writes_a_model_with_its_provenance(masks, tmp_path):
    out = tmp_path / "y.npz"
    shape(masks, output=out, maps="y", core="2", steps=1, held_out=1, validation=1, seed=3)
    sections = load_sections(out)
    assert section_shape(sections, "shape_y", out).fast
    card = sections["shape_y"].card["provenance"]
    assert sorted(card["subjects"] + card["validation"] + card["held_out"]) == ["p0-000", "p1-000", "p2-000"]
    assert len(card["validation"]) == len(card["held_out"]) == 1
    assert card["mean_mm3"]["core"] < card["mean_mm3"]["edema"]
    both = tmp_path / "model.npz"
    with pytest.raises(UsageError, match="two of the files"):
        combine([out, out], output=both)
    combine([out], output=both)
    assert load_sections(both).keys() == {"shape_y"}


@pytest.mark.slow
def test_training_goes_on_from_its_checkpoint_alone(masks, tmp_path, monkeypatch):
    """A run stopped at a checkpoint ends as one that was not; other masks do not continue it."""
    common = {"maps": "y", "core": "2", "steps": 3, "held_out": 1, "validation": 1, "seed": 3}
    shape(masks, output=tmp_path / "whole.npz", **common)
    monkeypatch.setattr(train_shape, "EVERY", 2)
    folder = tmp_path / "new" / "folder"
    shape(masks, output=tmp_path / "once.npz", checkpoints=folder, **common)  # its checkpoint is step 2
    shape(masks, output=tmp_path / "again.npz", checkpoints=folder, **common)
    w = [load_sections(tmp_path / f"{n}.npz")["shape_y"].arrays for n in ("whole", "once", "again")]
    assert all(np.array_equal(w[0][k], other[k]) for k in w[0] for other in w[1:])
    with pytest.raises(IntegrityError, match="B60"):
        shape(masks, output=tmp_path / "other.npz", checkpoints=folder, **common | {"seed": 4})


@pytest.mark.slow
def test_blas_has_one_thread_while_it_trains(masks, tmp_path, monkeypatch):
    """Its sums depend on the number of its threads: with two the shipped priors came out with other bits."""
    seen = []
    advance = training.advance

    def watched(*arguments):
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return advance(*arguments)

    monkeypatch.setattr(training, "advance", watched)
    with threadpool_limits(2, "blas"):
        shape(masks, output=tmp_path / "y.npz", maps="y", core="2", steps=1, held_out=1, validation=1, seed=3)
    assert seen
    assert set(seen) == {1}


@pytest.mark.slow
def test_the_paper_s_rule_goes_on_from_its_checkpoint(masks, tmp_path, monkeypatch):
    common = {"maps": "y", "core": "2", "rule": "cd", "held_out": 0, "validation": 1, "seed": 3, "step": 0.05}
    shape(masks, output=tmp_path / "whole.npz", steps=3, **common)
    monkeypatch.setattr(train_shape, "EVERY", 2)
    for name in ("once", "again"):  # the second continues at step 2
        shape(masks, output=tmp_path / f"{name}.npz", checkpoints=tmp_path / "kept", steps=3, **common)
    found = [load_sections(tmp_path / f"{n}.npz")["shape_y"] for n in ("whole", "once", "again")]
    assert all(np.array_equal(found[0].arrays[k], x.arrays[k]) for k in found[0].arrays for x in found)
    command = found[0].card["provenance"]["command"]
    assert "--rule cd --steps 3 --step 0.05 --held-out 0 --validation 1" in command


@pytest.mark.slow
def test_a_trace_holds_each_step_once(masks, tmp_path, monkeypatch):
    """Also of a run that was continued, and of steps after its last checkpoint, which are done again."""
    common = {"maps": "y", "core": "2", "rule": "cd", "held_out": 0, "validation": 0, "seed": 3}
    monkeypatch.setattr(train_shape, "EVERY", 2)
    for name in ("once", "again"):
        shape(masks, output=tmp_path / f"{name}.npz", checkpoints=tmp_path / "kept", steps=5, **common)
        head, *rows = (tmp_path / "kept" / "shape_y.tsv").read_text("utf-8").splitlines()
        assert [row.split("\t")[0] for row in rows] == ["1", "2", "3", "4"]
        assert {len(row.split("\t")) for row in (head, *rows)} == {7}


@pytest.mark.parametrize(("patients", "held_out", "validation"), [(30, 6, 3), (191, 30, 10), (3, 0, 0)])
def test_few_masks_are_not_all_held_out(patients, held_out, validation):
    assert train_shape.default_split(patients) == (held_out, validation)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), 11.0])
def test_steps_out_of_range_are_refused(tmp_path, step):
    with pytest.raises(UsageError, match="E2-step step is out of range"):
        shape([], output=tmp_path / "x.npz", step=step)


def test_a_message_advises_an_option_that_exists():
    assert "--step" in training.SMALLER
    assert "step" in signature(shape).parameters
    assert "checkpoints" in signature(shape).parameters


def test_core_must_be_numbers(tmp_path):
    with pytest.raises(UsageError, match="numbers separated by commas"):
        shape([], output=tmp_path / "x.npz", core="necrosis")


def test_maps_are_the_whole_tumor_and_its_core(masks):
    found = read_shapes(masks, [2])
    assert [s.name for s in found["z"]] == ["p0-000", "p1-000", "p2-000"]
    assert all(z.volume > y.volume for z, y in zip(found["z"], found["y"]))
    volumes = tumor_volumes(found, set())
    assert volumes["core"] == pytest.approx(np.mean([s.volume for s in found["y"]]), abs=0.1)


def test_masks_of_other_sizes_are_refused(tmp_path):
    path = tmp_path / "coarse.nii.gz"
    nib.save(nib.Nifti1Image(np.ones((9, 9, 9), np.uint8), np.diag([2, 2, 2, 1])), path)
    with pytest.raises(GeometryError, match="1 mm"):
        read_shapes([path], [2])


@pytest.mark.parametrize(("core", "held_out"), [("2", 5), ("99999999999999999999", 0), ("7", 0)])
def test_masks_that_leave_nothing_to_train_on_are_refused(masks, tmp_path, core, held_out):
    with pytest.raises(UsageError, match="E2-masks no mask of at least 300 mm³ is left to train y on"):
        shape(masks, output=tmp_path / "x.npz", maps="y", core=core, held_out=held_out, validation=0, seed=3)


@pytest.mark.parametrize("rule", ["recovery", "cd"])
def test_no_masks_or_empty_ones_are_refused(tmp_path, rule):
    empty = tmp_path / "empty.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((20, 20, 20), np.uint8), np.eye(4)), empty)
    for paths in ([], [empty]):
        with pytest.raises(UsageError, match="no mask of at least 300 mm³ is left to train z on"):
            shape(paths, output=tmp_path / "x.npz", maps="zy", rule=rule)


def test_masks_stored_in_another_orientation_are_the_same_shapes(masks, tmp_path):
    for path in masks:
        image = nib.load(path)
        turned = np.asarray(image.dataobj)[::-1].transpose(2, 0, 1)
        affine = np.array([[0, -1, 0, turned.shape[1] - 1], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])
        (tmp_path / "turned").mkdir(exist_ok=True)
        nib.save(nib.Nifti1Image(turned, affine), tmp_path / "turned" / path.name)
    found = [read_shapes(x, [2])["y"] for x in (masks, sorted((tmp_path / "turned").glob("*")))]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.v, other.v)


def test_a_mask_given_twice_is_refused(masks):
    """Twice in training, it would count twice; and a held-out patient may come back under another folder."""
    with pytest.raises(UsageError, match="two masks have the same name"):
        read_shapes([*masks, masks[0]], [2])


def test_images_are_no_masks(tmp_path):
    path = tmp_path / "t1c.nii.gz"
    nib.save(nib.Nifti1Image(np.full((20, 20, 20), 0.5, np.float32), np.eye(4)), path)
    with pytest.raises(UnreadableFileError, match="whole numbers only"):
        read_shapes([path], [2])


@pytest.mark.parametrize("rule", [pytest.param("recovery", marks=pytest.mark.slow), "cd"])
def test_thirty_masks_train_with_the_default_split_and_any_step(tmp_path, rule):
    """Six patients held out and three watched; the size of the step changes the model."""
    paths = [tmp_path / f"p{n}-000.nii.gz" for n in range(30)]
    for n, path in enumerate(paths):
        labels = np.zeros((20, 20, 20), np.uint8)
        labels[3 : 11 + n % 3, 4:12, 5:13] = 2
        nib.save(nib.Nifti1Image(labels, np.eye(4)), path)
    found = []
    for step in (0.1, 0.02):
        out = tmp_path / f"{step}.npz"
        shape(paths, output=out, maps="y", core="2", rule=rule, steps=1, step=step)
        section = load_sections(out)["shape_y"]
        card = section.card["provenance"]
        assert [len(card[k]) for k in ("subjects", "validation", "held_out")] == [21, 3, 6]
        assert f"--step {step}" in card["command"]
        found.append(section.arrays["w"])
    assert not np.array_equal(*found)


def test_unknown_maps_are_refused(tmp_path):
    with pytest.raises(UsageError, match="z, y or zy"):
        shape([], output=tmp_path / "x.npz", maps="x")
