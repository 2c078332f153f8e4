"""The training commands: checkpoints, refusals, and prepared maps on disk."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from ball_maps import shifted
from small_atlas import small_atlas

from tumoar.cli.train import _start, atlas, identity, load_state, prepare, save_state, train_with_progress
from tumoar.geometry.image import Grid
from tumoar.io.nifti import write_nifti
from tumoar.io.store import save_atlas
from tumoar.train.atlas import AtlasSettings, Level, train
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, UsageError
from tumoar.vocabulary.labels import default_labels

SETTINGS = AtlasSettings(levels=(Level((8.0,), 2),), collapses=0)


def test_a_killed_training_goes_on_from_its_checkpoint(tmp_path):
    maps, path = np.stack([shifted(-1), shifted(1)]), tmp_path / "run.npz"
    whole = train_with_progress(maps, default_labels(), SETTINGS, 3, None)
    run = identity(maps, default_labels(), SETTINGS, 3)
    first, _ = next(train(maps, default_labels(), SETTINGS, 3))
    save_state(path, first, run)
    resumed = train_with_progress(maps, default_labels(), SETTINGS, 3, path)
    assert resumed.positions.tobytes() == whole.positions.tobytes()
    assert resumed.alpha.tobytes() == whole.alpha.tobytes()
    assert load_state(path, run).done == whole.done == 3
    with pytest.raises(IntegrityError, match="other label maps"):
        train_with_progress(maps, default_labels(), SETTINGS, 4, path)


def test_one_head_is_not_enough(tmp_path):
    with pytest.raises(UsageError, match="at least two"):
        atlas([tmp_path / "a.nii.gz"], tmp_path / "model.npz")


def test_heads_kept_for_tests_do_not_train(tmp_path):
    paths = [tmp_path / f"{n}.nii.gz" for n in "ab"]
    with pytest.raises(UsageError, match=r"reserved for tests.*b\.nii\.gz"):
        atlas(paths, tmp_path / "model.npz", held_out=["b.nii.gz", "c.nii.gz"])


def test_maps_that_were_not_prepared_are_refused(tmp_path):
    paths = [tmp_path / f"{n}.nii.gz" for n in "ab"]
    for path in paths:
        write_nifti(path, np.full((8, 8, 8), 507, np.int16), Grid((8, 8, 8), np.eye(4)))
    with pytest.raises(UnreadableFileError, match="train prepare"):
        atlas(paths, tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()


def test_label_maps_hold_whole_numbers(tmp_path):
    path = tmp_path / "a.nii.gz"
    write_nifti(path, np.full((8, 8, 8), 0.5, np.float32), Grid((8, 8, 8), np.eye(4)))
    with pytest.raises(UnreadableFileError, match="whole numbers"):
        prepare([path], tmp_path / "out")


def test_a_training_goes_on_from_an_atlas_that_says_how_heads_lie_in_it(tmp_path):
    paths = [tmp_path / f"{n}.nii.gz" for n in "ab"]
    with pytest.raises(UsageError, match="--iterations needs --start"):
        atlas(paths, tmp_path / "model.npz", iterations=3)
    save_atlas(tmp_path / "bare.npz", small_atlas())
    with pytest.raises(UsageError, match="does not say how heads are aligned"):
        atlas(paths, tmp_path / "model.npz", start=tmp_path / "bare.npz")
    assert not (tmp_path / "model.npz").exists()


def test_an_atlas_of_other_structures_is_refused(tmp_path):
    paths = [tmp_path / f"{n}.nii.gz" for n in "ab"]
    table = default_labels()
    fewer = table.join("deep gray matter", "gray matter")
    with pytest.raises(UsageError, match=r"other structures.*deep gray matter"):
        _start(files("tumoar") / "data" / "atlas.npz", fewer)
    kept, digest = _start(files("tumoar") / "data" / "atlas.npz", table)
    assert len(digest) == 64
    assert identity(np.zeros(1, np.uint8), table, SETTINGS, 0, digest) != identity(
        np.zeros(1, np.uint8), table, SETTINGS, 0
    )
    assert kept.labels.K == table.K
    with pytest.raises(UnreadableFileError):
        atlas(paths, tmp_path / "model.npz", start=files("tumoar") / "data" / "atlas.npz")
