"""Checkpoints: what goes in comes out, damage is noticed, foreign ones are refused."""

import os

import numpy as np
import pytest

from tumoar.io import checkpoint
from tumoar.io.checkpoint import Checkpoints
from tumoar.vocabulary.errors import IntegrityError, OutputError

KEY, OTHER = "a" * 64, "b" * 64


def arrays(n):
    return {"x": np.arange(n), "names": np.array(["a", "bc"]), "flag": np.array(n > 3)}


def test_round_trip(tmp_path):
    keeper = Checkpoints(tmp_path / "c", KEY)
    assert keeper.load("fit") is None
    keeper.save("fit", arrays(5))
    found = keeper.load("fit")
    assert found is not None
    assert all(np.array_equal(found[k], v) for k, v in arrays(5).items())


@pytest.mark.parametrize("cut", [0, 10, 64, 128, 200, -1])
def test_damage_falls_back_to_the_generation_before(tmp_path, cut):
    keeper = Checkpoints(tmp_path, KEY)
    keeper.save("chain", arrays(5))
    keeper.save("chain", arrays(9))
    path = tmp_path / "chain.ckpt"
    path.write_bytes(path.read_bytes()[:cut])
    found = keeper.load("chain")
    assert found is not None
    assert len(found["x"]) == 5


def test_a_flipped_bit_is_noticed(tmp_path):
    keeper = Checkpoints(tmp_path, KEY)
    keeper.save("fit", arrays(5))
    path = tmp_path / "fit.ckpt"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(bytes(content))
    assert keeper.load("fit") is None


def test_another_run_is_refused(tmp_path):
    Checkpoints(tmp_path, KEY).save("fit", arrays(5))
    with pytest.raises(IntegrityError, match="E12-B60"):
        Checkpoints(tmp_path, OTHER).load("fit")


def test_unwritable_folder_is_said(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match="E9-B58"):
        Checkpoints(blocked / "c", KEY).save("fit", arrays(5))


def test_a_link_in_the_folder_is_not_written_through(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "precious").write_text("keep")
    (tmp_path / "c" / "fit.part").symlink_to(tmp_path / "precious")
    (tmp_path / "c" / "fit.ckpt").symlink_to(tmp_path / "precious")
    keeper = Checkpoints(tmp_path / "c", KEY)
    keeper.save("fit", arrays(5))
    assert (tmp_path / "precious").read_text() == "keep"
    assert keeper.load("fit") is not None


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path):
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "fit.part")
    Checkpoints(tmp_path / "c", KEY).save("fit", arrays(5))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_checkpoints_of_somebody_else_are_not_read(tmp_path, monkeypatch, kind):
    keeper = Checkpoints(tmp_path / "c", KEY)
    keeper.save("fit", arrays(5))
    whose = tmp_path / "c" if kind == "folder" else tmp_path / "c" / "fit.ckpt"
    monkeypatch.setattr(checkpoint, "owner", lambda path: 12345 if path == whose else os.geteuid())
    with pytest.raises(IntegrityError, match=r"E12-B60 .*another user"):
        keeper.load("fit")
