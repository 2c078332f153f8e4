"""Training that goes on from an atlas: the mesh stays, organs move to where the new label maps have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ball_maps import shifted
from heads import analytic_head

from tumoar.numerics import tetra, tetra_labels
from tumoar.train.align import Alignment, landmark_names, landmarks
from tumoar.train.atlas import AtlasSettings, Level, plan, to_atlas, train
from tumoar.train.refine import adapt_alignment, begin_from, refine_settings, to_wholes
from tumoar.vocabulary.labels import default_labels
from tumoar.vocabulary.parts import brain_labels

SETTINGS = AtlasSettings(levels=(Level((8.0,), 2), Level((3.0, 4.0, 5.0), 3)), collapses=0)
LABELS = default_labels()
SHIFTS = (-2, 0, 2)


def larger(map_):
    """The label in the middle grows by a voxel to the front."""
    out = map_.copy()
    out[:, 1:][map_[:, :-1] == 4] = 4
    return out


@pytest.fixture(scope="module")
def before():
    maps = np.stack([shifted(s) for s in SHIFTS])
    *_, (state, _) = train(maps, LABELS, SETTINGS, seed=5)
    return to_atlas(state, maps, LABELS, SETTINGS, {})


@pytest.fixture(scope="module")
def refined(before):
    maps = np.stack([larger(shifted(s)) for s in SHIFTS])
    settings = refine_settings(SETTINGS, 4)
    steps = [begin_from(before, maps, LABELS, settings)]
    steps += [state for state, _ in train(maps, LABELS, settings, 0, steps[0])]
    return maps, settings, steps


def test_the_mesh_stays_and_no_step_folds_it(before, refined):
    _, settings, steps = refined
    assert [s.done for s in steps] == list(range(1, len(plan(settings)) + 1))
    for state in steps:
        np.testing.assert_array_equal(state.tetrahedra, before.tetrahedra)
        for nodes in (state.reference, *state.positions):
            assert (tetra.volumes(nodes, state.tetrahedra) > 0).all()


def test_it_describes_the_new_maps_as_well_as_a_training_from_the_start(refined):
    maps, _, steps = refined
    *_, (fresh, _) = train(maps, LABELS, SETTINGS, seed=5)
    assert steps[-1].data < steps[0].data
    assert steps[-1].data < 1.02 * fresh.data


def test_probabilities_are_those_of_the_new_definition(before, refined):
    maps, settings, steps = refined
    state = steps[-1]
    old = np.ascontiguousarray(before.alpha[:, [s.trained for s in LABELS.structures]])
    cost, _ = tetra_labels.counts(state.positions, state.tetrahedra, old, maps, settings.floor)
    assert state.data < 0.97 * cost


def halved(map_, fine):
    """The label map with parts of its structures: the left and the right one of each pair."""
    whole = to_wholes(LABELS, fine).astype(int)
    pairs = np.array([(found[0], found[-1]) for found in (np.flatnonzero(whole == k) for k in range(17))])
    left = np.arange(map_.shape[0])[:, None, None] < map_.shape[0] / 2
    return np.where(left, pairs[map_, 0], pairs[map_, 1]).astype(np.uint8)


def test_parts_of_structures_are_learned_on_the_same_mesh_in_the_same_place(before):
    fine = brain_labels()
    whole = to_wholes(LABELS, fine)
    maps = np.stack([halved(shifted(s), fine) for s in SHIFTS])
    np.testing.assert_array_equal(whole[maps], [shifted(s) for s in SHIFTS])
    settings = refine_settings(SETTINGS, 3, keep_reference=True)
    first = begin_from(before, maps, fine, settings)
    *_, (state, _) = train(maps, fine, settings, 0, first)
    assert state.data < first.data
    assert any((a != b).any() for a, b in zip(state.positions, first.positions))
    found = to_atlas(state, maps, fine, settings, {})
    np.testing.assert_array_equal(found.nodes, before.nodes)
    merged = np.zeros((len(found.nodes), before.labels.K))
    np.add.at(merged.T, fine.whole_of_l, found.alpha.T)
    assert np.abs(merged - before.alpha).mean() < 0.005
    white, mid = fine.parts("white matter"), before.nodes[:, 0]
    sides = [
        found.alpha[:, [k for k in white if fine.structures[k].side == s]].sum(1) for s in ("left", "right")
    ]
    assert (sides[0][mid > 4] < 0.01).all()
    assert (sides[1][mid < -4] < 0.01).all()


def test_an_alignment_takes_the_landmarks_of_the_heads_in_its_box():
    head = analytic_head()[0].astype(np.uint8)
    names, own = landmark_names(LABELS), landmarks(head, LABELS)
    start = Alignment((96, 96, 96), dict(zip(names, 1.1 * own + np.array([3.0, -2.0, 1.0]), strict=True)))
    adapted = adapt_alignment(start, [head, head], LABELS)
    assert adapted.shape == start.shape
    for name in names:
        np.testing.assert_allclose(adapted.landmarks[name], start.landmarks[name], atol=1e-6)
    moved = {**start.landmarks, "brainstem": start.landmarks["brainstem"] + np.array([0.0, 5.0, 0.0])}
    back = adapt_alignment(replace(start, landmarks=moved), [head], LABELS).landmarks["brainstem"]
    assert abs(back - start.landmarks["brainstem"]).max() < 2.0
