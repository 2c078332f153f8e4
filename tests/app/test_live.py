"""Slices of a run in progress: brain and tumor of a sample, the patient's right on the left, no face."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

from tumoar.app.live import CORE, EDEMA, LIVE, MARGIN, Live, draw_slices
from tumoar.geometry.image import Grid
from tumoar.vocabulary.errors import TumoarError

SHAPE = (40, 50, 30)
IN_BRAIN = np.array([False, True])


@pytest.fixture
def case():
    D = np.random.default_rng(0).normal(3, 0.1, (1, *SHAPE)).astype(np.float32)
    D[:, :, 44:] = 9  # a bright face, in front of the brain
    return SimpleNamespace(D=D, contrasts=[SimpleNamespace(name="T2")], grid=Grid(SHAPE, np.eye(4)))


@pytest.fixture
def labels():
    l, z, y = (np.zeros(SHAPE, np.uint8) for _ in range(3))
    l[5:35, 5:36, 5:25] = 1
    z[26:34, 10:20, 10:20] = 1  # on the patient's right: larger i
    y[28:32, 12:18, 12:18] = 1
    return {"labels_l": l, "labels_z": z, "labels_y": y}


def picture(case, labels):
    return np.asarray(PIL.Image.open(BytesIO(draw_slices(case, labels, IN_BRAIN)))).astype(int)


def test_tumor_is_on_the_side_where_it_is_and_the_face_is_not_shown(case, labels):
    axial = picture(case, labels)[:, : 30 + 2 * int(MARGIN)]
    orange, blue = (axial @ [1, 0, -1] > 40), (axial @ [-1, 0, 1] > 40)
    assert orange.sum() == 4 * 6
    assert blue.sum() == 8 * 10 - 4 * 6
    assert np.argwhere(orange)[:, 1].mean() < axial.shape[1] / 2  # the right of the patient
    assert np.argwhere(orange)[:, 0].mean() > 20  # behind: low in the picture
    assert axial.max() < 256
    assert len(axial) == 31 + 2 * MARGIN  # the face begins 8 mm in front of the brain
    assert CORE != EDEMA


@pytest.mark.parametrize("empty", ["labels_y", "labels_z", "labels_l"])
def test_a_sample_without_tumor_or_brain_is_drawn(case, labels, empty):
    labels[empty][:] = 0
    if empty == "labels_z":
        labels["labels_y"][:] = 0
    assert picture(case, labels).size


def test_a_picture_that_cannot_be_written_does_not_end_the_run(case, labels, tmp_path):
    kept = {}
    keeper = SimpleNamespace(save=kept.__setitem__, load=kept.get)
    live = Live(keeper, case, IN_BRAIN, tmp_path / LIVE)
    live.save("fit", {"theta": np.zeros(1)})
    assert not (tmp_path / LIVE).exists()
    live.save("chain_0", labels)
    assert (tmp_path / LIVE).read_bytes().startswith(b"\x89PNG")
    assert live.load("chain_0") is labels
    lost = Live(keeper, case, IN_BRAIN, tmp_path / "absent" / LIVE)
    lost.save("chain_0", labels)

    def full(name, arrays):
        raise TumoarError("B57", "no space left")

    with pytest.raises(TumoarError):
        Live(SimpleNamespace(save=full), case, IN_BRAIN, tmp_path / LIVE).save("chain_0", labels)
