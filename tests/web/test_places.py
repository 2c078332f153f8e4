"""Nothing outside the chosen folders is found, whatever the name."""

from __future__ import annotations

import os

import pytest

from tumoar.vocabulary.errors import TumoarError
from tumoar.web.places import Places, identify


@pytest.fixture
def tree(tmp_path):
    inside, outside = tmp_path / "chosen", tmp_path / "secret"
    (inside / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (inside / "a" / "t1.nii").write_text("x")
    (outside / "name.nii").write_text("x")
    (inside / "link").symlink_to(outside)
    (inside / "file").symlink_to(outside / "name.nii")
    (inside / "loop").symlink_to(inside / "loop")
    (inside / "own").symlink_to(inside / "a")
    (inside / ".hidden").mkdir()
    (tmp_path / "chosen-too").mkdir()
    (tmp_path / "chosen-too" / "x").write_text("x")
    return inside


def test_files_below_are_found_and_listed(tree):
    places = Places.choose([tree])
    assert places.find(0, "a/t1.nii") == tree / "a" / "t1.nii"
    assert places.find(0, "own/t1.nii") == tree / "a" / "t1.nii"
    assert [(e.name, e.is_folder) for e in places.entries(0, "a")] == [("a/b", True), ("a/t1.nii", False)]
    assert [e.name for e in places.entries(0)] == ["a", "own"]


@pytest.mark.parametrize(
    "name",
    ["..", "../secret/name.nii", "a/../../secret", "/etc/passwd", "link", "link/name.nii", "file", "loop",
     "a/../../chosen-too/x", "../chosen-too/x", "a\0/../..", "nothing", "a/" * 3000],
)  # fmt: skip
def test_names_that_lead_outside_are_refused(tree, name):
    places = Places.choose([tree])
    with pytest.raises(TumoarError) as refusal:
        places.find(0, name)
    assert str(tree.parent) not in str(refusal.value)
    with pytest.raises(TumoarError):
        places.entries(0, name)


def test_only_chosen_folders_have_numbers(tree):
    for number in (-1, 1, 10**9):
        with pytest.raises(TumoarError):
            Places.choose([tree]).find(number, "a")
    with pytest.raises(TumoarError):
        Places.choose([tree / "nothing"])


def test_results_are_found_without_following_links(tree):
    for folder in (tree / "a" / "b", tree.parent / "secret"):
        (folder / "run.json").write_text("{}")
    (tree / "a" / "circle").symlink_to(tree)
    places = Places.choose([tree])
    assert list(places.results()) == [tree / "a" / "b"]
    assert identify(tree / "a" / "b") != identify(tree / "a")
    assert os.sep not in identify(tree)
