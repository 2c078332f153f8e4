"""What a report leaves out of whole heads: the face, and nothing that was outlined."""

from __future__ import annotations

import gzip
from base64 import b64decode
from dataclasses import replace
from functools import cache
from io import BytesIO
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import PIL.Image
import pytest
import reference_tetra
import small_head
from heads import analytic_head
from small_result import small_result

from tumoar.geometry.image import Grid
from tumoar.model.atlas import Atlas, place
from tumoar.report import face, read_data, render, report_data
from tumoar.report.group import thumbnails
from tumoar.vocabulary.labels import default_labels

TABLE = default_labels()
SKIN = {  # mm from the center of the brain of the analytic head
    "lid": (32, 88, -38),
    "corner of the eye": (50, 80, -38),
    "root of the nose": (0, 97, -36),
    "nose": (0, 110, -60),
    "lips": (0, 98, -95),
    "chin": (0, 92, -125),
    "cheek": (48, 70, -75),
    "ear": (82, -5, -40),
    "forehead": (0, 98, 10),
    "neck": (40, -90, -110),
}


@cache
def analytic():
    return analytic_head(2.0)


def head(turn=None):
    """The analytic head as it is voted, in a world that may be turned."""
    labels, grid = analytic()
    position = np.zeros(256, np.uint8)
    position[TABLE.indices] = np.arange(TABLE.K)
    matrix = np.eye(4)
    if turn is not None:
        matrix[:3, :3] = turn
        grid = Grid(grid.shape, matrix @ grid.affine)
    nodes, tetrahedra = reference_tetra.body_centered((2, 2, 2), 4.0, 0.0)
    alpha = np.eye(1, TABLE.K, dtype=np.float32).repeat(len(nodes), 0)  # no brain anywhere
    placed = place(Atlas(nodes, tetrahedra, alpha, TABLE), np.eye(4), grid)
    votes = SimpleNamespace(l=position[labels], z=np.zeros(labels.shape, np.uint8))
    case = SimpleNamespace(grid=grid, skull_stripped=False, valid=np.ones((1, *labels.shape), bool))
    fit, placement = SimpleNamespace(placed=placed), SimpleNamespace(matrix=matrix)
    return SimpleNamespace(case=case, table=TABLE, votes=votes, placement=placement, fit=fit)


@pytest.fixture(scope="module")
def bright():
    """The small head, in air as bright as white matter."""
    result = small_result()
    D = np.where(result.case.D < 3, np.float32(6), result.case.D)
    return replace(result, case=replace(result.case, D=D))


def unpacked(nifti):
    return np.asarray(nib.Nifti1Image.from_bytes(gzip.decompress(b64decode(nifti))).dataobj)


def test_whatever_was_outlined_is_shown():
    result, shown = shown_of_head()
    organs = {part for organ in TABLE.organs for part in organ.structures}
    for name in organs:
        assert shown[result.votes.l == TABLE.l(name)].all(), name


@cache
def shown_of_head():
    result = head()
    return result, face.shown(result)


@pytest.mark.parametrize("place", SKIN)
def test_skin_is_left_out(place):
    result, shown = shown_of_head()
    for side in (-1, 1):
        x, y, z = SKIN[place]
        at = np.rint(result.case.grid.index((side * x, y, z))).astype(int)
        if (at < shown.shape).all() and (at >= 0).all():
            assert not shown[tuple(at)]


def test_in_front_of_the_middle_of_the_eyes_there_are_eyes_and_brain_alone():
    result, shown = shown_of_head()
    grid = result.case.grid
    middle = int(np.ceil(grid.index((0, 72, 0))[1])) + 1
    below = int(grid.index((0, 0, -38))[2])  # where the face is, away from the brain
    seen = result.votes.l[:, middle:, :below][shown[:, middle:, :below]]
    names = {TABLE.structures[k].name.partition(" ")[2] for k in np.unique(seen)}
    assert names == {"eye tissue", "eye fluid"}


def test_front_is_where_the_atlas_has_it_however_the_head_lies():
    a, c = np.cos(0.6), np.sin(0.6)
    turn = np.array([[1, 0, 0], [0, a, -c], [0, c, a]])
    assert np.array_equal(shown_of_head()[1], face.shown(head(turn)))


def test_a_lobe_that_the_fit_has_missed_stays_to_be_seen(monkeypatch):
    result = head()
    brain = TABLE.in_brain[result.votes.l]
    l = np.where(np.arange(brain.shape[1])[:, None] < brain.shape[1] // 2, result.votes.l, 0)
    lost = SimpleNamespace(**{**vars(result), "votes": SimpleNamespace(l=l, z=result.votes.z)})
    monkeypatch.setattr(face, "_atlas_brain", lambda result: brain)
    assert face.shown(lost)[brain].all()


def test_images_that_are_stripped_are_left_as_they_are_and_others_beside_them_are_not():
    result = head()
    inside = TABLE.in_brain[result.votes.l]
    case = SimpleNamespace(grid=result.case.grid, skull_stripped=True)
    case.valid = np.stack([inside, np.ones_like(inside)])
    found = face.without_face(SimpleNamespace(**{**vars(result), "case": case}))
    assert found[0].all()
    assert np.array_equal(found[1], face.shown(result))


def test_no_volume_and_no_picture_of_the_page_shows_what_is_left_out(bright):
    data = report_data(bright, (), {})
    shown = face.shown(bright)
    assert not data["whole"]
    assert not shown[[0, -1], [0, -1], [0, -1]].any()
    for row in data["contrasts"]:
        assert (unpacked(row["nifti"])[~shown] == 0).all()
        assert (unpacked(row["nifti"])[shown] > 0).mean() > 0.9
    for row in data["pictures"]:
        corner = np.asarray(PIL.Image.open(BytesIO(b64decode(row["png"]))))[:6, :6]
        assert (corner == 0).all()
    for row in data["bias"]:
        assert (np.asarray(PIL.Image.open(BytesIO(b64decode(row["png"]))))[:3, :3, 3] == 0).all()
    assert "Removed from the images: skin" in render(data)
    for row in thumbnails(render(data)):
        small = np.asarray(PIL.Image.open(BytesIO(b64decode(row["jpeg"]))))
        assert small[:4, :4].max() < 20


def test_a_face_is_kept_where_it_is_asked_for(bright):
    data = report_data(bright, (), {}, keep_face=True)
    assert data["whole"]
    assert unpacked(data["contrasts"][0]["nifti"])[0, 0, 0] > 0
    page = render(data)
    assert "The images show the whole head" in page
    assert read_data(page) == data


def test_the_placed_atlas_counts_as_brain():
    result = small_result()
    found = face._atlas_brain(result)
    assert small_head.dice(found, small_head.LABELS.in_brain[small_head.truth()[0]]) > 0.9
