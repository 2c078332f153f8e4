"""The vote on organs outside the brain, which may have a majority nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.inference.tally import Tally, find_vote_threshold, keep_connected
from tumoar.model.joint import Labels
from tumoar.vocabulary.labels import default_labels

TABLE = default_labels()
SAMPLES = 20


def voted(
    columns: dict[str, list[int]],
    rest: str = "eye socket fat",
    tumor: list[int] | None = None,
    chain: dict[str, list[int]] | None = None,
):
    """Names of the voted structures, voxel by voxel, from how many of 20 samples each structure has.

    `chain` has, for a structure, voxels that belong to it for certain.
    """
    n = len(next(iter(columns.values())))
    tally = Tally(TABLE, np.ones((n, 1, 1), np.uint8))
    for i in range(SAMPLES):
        l = np.full(n, TABLE.l(rest))
        taken = np.zeros(n, int)
        for name, votes in columns.items():
            l[(i >= taken) & (i < taken + votes)] = TABLE.l(name)
            taken += votes
        z = np.array([i < t for t in tumor or [0] * n])
        tally.add(Labels(*(v.astype(np.uint8).reshape(-1, 1, 1) for v in (l, z, 0 * z))))
    certain = {TABLE.l(name): np.array(at, bool).reshape(-1, 1, 1) for name, at in (chain or {}).items()}
    return [TABLE.structures[k].name for k in tally.vote(certain=certain).l.ravel()]


def test_a_thin_organ_gets_the_voxels_it_has_in_the_samples_those_with_most_votes():
    nerve, fat = "left optic nerve", "eye socket fat"
    assert voted({nerve: [8, 7, 2, 2, 1, 0]}) == [nerve] + 5 * [fat]  # one voxel on average
    assert voted({nerve: [9, 9, 9, 9, 4, 0]}) == 4 * [nerve] + 2 * [fat]  # where two would do, four are alike


def test_what_has_a_majority_keeps_it():
    nerve, fat = "left optic nerve", "eye socket fat"
    assert voted({nerve: [20, 20, 11, 9, 0]}) == 3 * [nerve] + 2 * [fat]
    assert voted({nerve: [11, 11, 11]}) == 3 * [nerve]
    assert voted({nerve: [0, 0]}) == 2 * [fat]


def test_a_chain_closes_gaps_and_drops_specks():
    nerve, fat = "left optic nerve", "eye socket fat"
    votes = [20, 20, 0, 20, 0, 15, 0, 0]
    assert voted({nerve: votes}) == [nerve, nerve, fat, nerve, fat, nerve, fat, fat]
    assert voted({nerve: votes}, chain={nerve: [1, 1, 1, 1, 0, 0, 0, 0]}) == 4 * [nerve] + 4 * [fat]


def test_a_chain_counts_in_the_volume():
    """Samples have 2 voxels; the chain takes one of them, and one of the next two is as good as the other."""
    nerve, fat = "left optic nerve", "eye socket fat"
    votes = {nerve: [4, 12, 12, 8, 4]}
    assert voted(votes) == [fat, nerve, nerve, fat, fat]
    assert voted(votes, chain={nerve: [0, 1, 1, 1, 0]}) == [fat, nerve, nerve, nerve, fat]


def test_a_structure_that_is_no_organ_by_itself_has_no_chain():
    votes = {"left eye tissue": [20, 0, 20], "eye socket muscles": [0, 20, 0]}
    chain = {name: [1, 1, 1] for name in votes}
    assert voted(votes, chain=chain) == voted(votes)


def test_without_a_chain_nothing_is_dropped():
    mask = np.array([1, 0, 1], bool).reshape(3, 1, 1)
    assert np.array_equal(keep_connected(mask, np.zeros_like(mask)), mask)


def test_tumor_covers_a_chain():
    found = voted({"left optic nerve": [20, 9, 20]}, tumor=[0, 11, 0], chain={"left optic nerve": [1, 1, 1]})
    assert TABLE.in_brain[TABLE.l(found[1])]


def test_organs_of_two_structures_and_neighbors_that_both_have_votes_enough():
    chiasm, nerve = "optic chiasm", "right optic nerve"
    # 25 votes for each: one voxel; the last belongs to the one that has more of what it needs
    assert voted({chiasm: [9, 7, 0, 9], nerve: [0, 0, 9, 8]})[3] == chiasm
    wall, fluid = "left eye tissue", "left eye fluid"
    assert voted({wall: [6, 4, 0], fluid: [3, 5, 2]})[:2] == [wall, fluid]


def test_brain_and_tumor_are_voted_as_before():
    hippocampus, gray = "left hippocampus", "gray matter"
    assert voted({hippocampus: [9, 9, 9, 0]}, rest=gray) == 4 * [gray]
    nerve = "left optic nerve"
    found = voted({nerve: [8, 8], gray: [12, 0]}, tumor=[12, 0])
    assert found[0] == gray


@pytest.mark.parametrize("samples", [1, 2, 50, 255])
def test_the_volume_is_the_nearest_to_the_mean_of_the_samples(samples):
    rng = np.random.default_rng(samples)
    votes = rng.binomial(samples, rng.beta(0.4, 2.0, 3000)).astype(np.uint8)
    t = find_vote_threshold(votes, samples)
    mean = votes.sum(dtype=float) / samples
    sizes = [abs(int((votes >= k).sum()) - mean) for k in range(1, samples // 2 + 2)]
    assert sizes[t - 1] == min(sizes)
