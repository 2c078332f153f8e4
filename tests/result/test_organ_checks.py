"""Notes on organs: pieces, volumes, tumor over them, and what CT does not show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_result import small_result

from tumoar.inference.tally import Votes
from tumoar.io.models import default_model
from tumoar.result import organ_checks
from tumoar.result.organ_checks import organs_lack, review_organs
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels
from tumoar.vocabulary.notes import find_lacking, needs_review
from tumoar.vocabulary.organs import expected_organs

TABLE = default_labels()
SEEN = dict.fromkeys((o.name for o in TABLE.organs), 1.0)
SHAPE = (48, 48, 48)


def ball(center, cm3):
    """A ball of a volume at 1 mm."""
    square = sum((i - c) ** 2 for i, c in zip(np.indices(SHAPE), center))
    return square <= (3000 * cm3 / (4 * np.pi)) ** (2 / 3)


def result_with(*parts, tumor=None):
    """A result whose samples have these structures, (name, mask), and this tumor."""
    result = small_result()
    l = np.full(SHAPE, TABLE.l("background"), np.uint8)
    for name, mask in parts:
        l[mask] = TABLE.l(name)
    z = np.zeros(SHAPE, bool) if tumor is None else tumor
    votes = Votes(l, z.astype(np.uint8), np.zeros(SHAPE, np.uint8))
    made = replace(result)
    made.__dict__["votes"] = votes
    return made


def found(result, seen=SEEN):
    return [(note.id, note.where) for note in review_organs(result, seen)]


def test_every_judged_organ_is_one_of_the_package_and_its_volumes_are_a_range():
    names = {o.name for o in TABLE.organs}
    for name, expected in expected_organs().items():
        assert name in names
        assert 0 < expected.volume[0] < expected.volume[1]


def test_a_good_organ_gets_no_note():
    assert found(result_with(("left hippocampus", ball((24, 24, 24), 3.5)))) == []


def test_the_card_of_an_atlas_says_what_its_organs_lack():
    atlas = small_result().fit.placed.atlas
    assert organs_lack(atlas) == {}
    assert organs_lack(replace(atlas, provenance={"lacks": {"Brainstem": "x"}})) == {"Brainstem": "x"}
    assert organs_lack(replace(atlas, provenance={"lacks": ["Brainstem"]})) == {}


def test_organs_of_the_packaged_atlas_are_what_planners_draw():
    atlas = default_model().atlas
    assert organs_lack(atlas) == {}
    assert "--clinical" in atlas.provenance["source"]


def test_what_an_organ_lacks_is_noted_without_asking_for_a_review(monkeypatch):
    monkeypatch.setattr(organ_checks, "organs_lack", lambda _: {"Brainstem": "has no peduncles"})
    notes = review_organs(result_with(("brainstem", ball((24, 24, 24), 20))), SEEN)
    assert [(n.where, n.level) for n in notes] == [("Brainstem", "info")]
    assert find_lacking(notes) == {"Brainstem": "has no peduncles"}
    assert not needs_review(notes)
    assert find_lacking(review_organs(result_with(), SEEN)) == {}


def test_pieces_are_noted_with_their_number():
    mask = ball((16, 24, 24), 2.5) | ball((38, 24, 24), 0.9)
    notes = review_organs(result_with(("left hippocampus", mask)), SEEN)
    assert [(n.id, n.where) for n in notes] == [("pieces", "Hippocampus_L")]
    assert "is in 2 pieces, the largest has 7" in notes[0].text
    crumb = ball((16, 24, 24), 3.0) | ball((38, 24, 24), 0.02)
    assert found(result_with(("left hippocampus", crumb))) == []


def test_every_piece_that_is_no_speck_is_noted():
    mask = ball((16, 24, 24), 3.0) | ball((38, 24, 24), 0.06)
    assert found(result_with(("left hippocampus", mask))) == [("pieces", "Hippocampus_L")]
    large = ball((18, 24, 24), 21) | ball((43, 24, 24), 0.04)
    (note,) = review_organs(result_with(("brainstem", large)), SEEN)
    assert "is in 2 pieces, the largest has 99%" in note.text


@pytest.mark.parametrize("cm3", [0.9, 7.0])
def test_volumes_that_no_adult_has_are_noted(cm3):
    made = result_with(("right hippocampus", ball((24, 24, 24), cm3)))
    assert found(made) == [("organ-volume", "Hippocampus_R")]


@pytest.mark.parametrize(("front", "level"), [(27, "review"), (22, "info"), (16, None)])
def test_an_organ_under_tumor_is_noted_with_its_share(front, level):
    organ = ball((24, 24, 24), 3.5)
    tumor = np.zeros(SHAPE, bool)
    tumor[:front] = True
    notes = review_organs(result_with(("left hippocampus", organ), tumor=tumor), SEEN)
    share = (organ & tumor).sum() / organ.sum()
    assert {"review": 0.5 < share < 1, "info": 0.05 < share < 0.5, None: 0 < share < 0.05}[level], share
    assert [(n.id, n.level) for n in notes] == ([("under-tumor", level)] if level else [])
    assert all(n.text.startswith(f"{share:.0%} of it lies under tumor") for n in notes)


def test_what_lies_outside_the_images_or_was_stripped_is_not_judged():
    small = result_with(("left hippocampus", ball((24, 24, 24), 0.9)), ("left eye fluid", ball((9, 9, 9), 1)))
    assert ("organ-volume", "Eye_L") in found(small)
    assert found(small, SEEN | {"Hippocampus_L": 0.9, "Eye_L": 0.2}) == []
    stripped = replace(small, case=replace(small.case, skull_stripped=True))
    stripped.__dict__["votes"] = small.votes
    assert found(stripped) == [("organ-volume", "Hippocampus_L")]


def test_ct_alone_does_not_show_hippocampi():
    organ = ("left hippocampus", ball((24, 24, 24), 3.5))
    made = result_with(organ)
    votes = made.votes
    for names, expected in ((("CT",), True), (("CT", "T1c"), False)):
        contrasts = tuple(find_contrast(name) for name in names)
        case = replace(made.case, D=made.case.D[: len(names)], contrasts=contrasts)
        seen_by = replace(made, case=replace(case, inputs=made.case.inputs[: len(names)]))
        seen_by.__dict__["votes"] = votes
        assert (("unseen-organ", "Hippocampus_L") in found(seen_by)) == expected


@pytest.mark.parametrize(
    ("slices", "voxels", "noted"), [(24, 12, True), (24, 9, False), (38, 12, True), (39, 12, False)]
)
def test_metal_in_the_slices_of_an_organ_is_noted(slices, voxels, noted):
    """The organ reaches from slice 15 to 33; metal lies far to the side."""
    made = result_with(("left hippocampus", ball((24, 24, 24), 3.4)))
    votes, D = made.votes, made.case.D[:1].copy()
    D[0] = 0.3
    D[0, 40, 2 : 2 + voxels, slices] = 30.71
    for name in ("CT", "T1c"):
        case = replace(made.case, D=D, contrasts=(find_contrast(name),), inputs=made.case.inputs[:1])
        seen_by = replace(made, case=case)
        seen_by.__dict__["votes"] = votes
        assert (("metal", "Hippocampus_L") in found(seen_by)) == (noted and name == "CT")


def test_an_organ_of_the_atlas_that_was_not_found_is_noted():
    made = result_with(("left hippocampus", ball((24, 24, 24), 3.5)))
    atlas = made.fit.placed.atlas
    alpha = atlas.alpha.copy()
    alpha[0, TABLE.l("optic chiasm")] = 0.01
    placed = replace(made.fit.placed, atlas=replace(atlas, alpha=alpha / alpha.sum(-1, keepdims=True)))
    known = replace(made, fit=replace(made.fit, placed=placed))
    known.__dict__["votes"] = made.votes
    assert found(known) == [("organ-volume", "OpticChiasm")]


def test_a_volume_just_outside_the_range_reads_as_outside():
    low, high = expected_organs()["Eye_L"].volume
    mask = ball((24, 24, 24), 15)
    extra = int(mask.sum()) - round(1004 * high)
    mask.reshape(-1)[np.flatnonzero(mask)[:extra]] = False
    notes = review_organs(result_with(("left eye tissue", mask)), SEEN)
    (text,) = [n.text for n in notes if n.id == "organ-volume" and n.where == "Eye_L"]
    assert not low <= float(text.split()[1]) <= high
