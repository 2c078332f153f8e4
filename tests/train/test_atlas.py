"""Training: costs fall, a resumed run is the same to the last bit, and the atlas is a valid one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ball_maps import shifted

from tumoar.numerics import tetra
from tumoar.numerics.tetra_raster import rasterize
from tumoar.train.atlas import REACH, AtlasSettings, Level, estimate_probabilities, fit, plan, to_atlas, train
from tumoar.vocabulary.labels import default_labels

SETTINGS = AtlasSettings(levels=(Level((8.0,), 2), Level((3.0, 4.0, 5.0), 3)), polish=1)


@pytest.fixture(scope="module")
def run():
    maps = np.stack([shifted(-2), shifted(0), shifted(2)])
    return maps, list(train(maps, default_labels(), SETTINGS, seed=5))


def test_cost_falls_within_a_level(run):
    _, steps = run
    fits = [i.figures for _, i in steps if i.stage.kind == "fit" and i.stage.level == 1]
    fits = [f.data + f.prior for f in fits]
    assert fits[2] < fits[1] < fits[0]
    assert [i.done for _, i in steps] == list(range(1, len(plan(SETTINGS)) + 1))


def test_nothing_folds_and_probabilities_are_some(run):
    _, steps = run
    for state, info in steps:
        assert info.figures.smallest > 0
        assert (tetra.volumes(state.reference, state.tetrahedra) > 0).all()
        np.testing.assert_allclose(state.alpha.sum(1), 1, atol=1e-5)


def test_heads_are_registered(run):
    """The label in the middle lies at three places in the heads and at one in the reference."""
    maps, steps = run
    state = steps[-1][0]
    middles = []
    for nodes in (state.reference, *state.positions):
        p = rasterize(nodes, state.tetrahedra, state.alpha, maps[0].shape)[..., 4]
        middles.append((p * np.arange(32)[:, None, None]).sum() / p.sum())
    assert middles[0] == pytest.approx(15.5, abs=1.0)
    assert middles[3] - middles[1] > 3.0


def test_resumed_is_the_same_to_the_last_bit(run):
    maps, steps = run
    for done in (2, 7):
        *_, (last, _) = train(maps, default_labels(), SETTINGS, seed=5, state=steps[done - 1][0])
        for name in ("reference", "tetrahedra", "positions", "alpha"):
            assert getattr(last, name).tobytes() == getattr(steps[-1][0], name).tobytes()


@pytest.mark.slow
def test_another_seed_is_another_mesh(run):
    maps, steps = run
    state, _ = next(train(maps, default_labels(), SETTINGS, seed=6))
    assert not np.array_equal(state.reference, steps[0][0].reference)


def test_fit_improves_a_head_that_was_not_seen(run):
    _, steps = run
    state = steps[-1][0]
    new = shifted(1)
    nodes = fit(state.reference, state.tetrahedra, state.alpha, new, SETTINGS, 12)

    def match(x):
        p = rasterize(x, state.tetrahedra, state.alpha, new.shape)
        return np.log(np.take_along_axis(p, new[..., None].astype(int), -1) + 1e-4).mean()

    assert match(nodes) > match(state.reference)
    assert tetra.volumes(nodes, state.tetrahedra).min() > 0


def test_a_head_left_out_leaves_no_trace_in_probabilities_estimated_from_the_others(run):
    maps, steps = run
    state, K = steps[-1][0], steps[-1][0].alpha.shape[1]
    alone = maps.copy()
    alone[2][maps[2] == 4] = 5  # a label that only the last head has
    of_two, of_all = (
        estimate_probabilities(state.positions[:n], state.tetrahedra, alone[:n], K, SETTINGS, 6)[0]
        for n in (2, 3)
    )
    assert of_all[:, 5].max() > 0.2
    assert (of_two[:, 5] <= of_two.min(1) + 1e-7).all()  # kappa, as for every label that is not there
    assert of_two[:, 5].min() < 0.01
    np.testing.assert_allclose(of_two.sum(1), 1, atol=1e-5)


def test_untrained_label_is_added_in_the_brain_only_or_everywhere(run):
    maps, steps = run
    labels, state = default_labels(), steps[-1][0]
    l = labels.l("unspecified brain tissue")
    atlas = to_atlas(state, maps, labels, SETTINGS, {"heads": []})
    everywhere = to_atlas(state, maps, labels, SETTINGS, {}, everywhere=True)
    others = np.delete(labels.in_brain, l)
    brain = 1.01 * np.delete(everywhere.alpha, l, 1)[:, others].max(1) > SETTINGS.support
    assert atlas.alpha.shape == (len(state.reference), labels.K)
    np.testing.assert_allclose(atlas.alpha[brain, l], 0.01 / 1.01, rtol=1e-5)
    assert (atlas.alpha[~brain, l] == 0).all()
    assert brain.any()
    assert not brain.all()
    np.testing.assert_allclose(everywhere.alpha[:, l], 0.01 / 1.01, rtol=1e-5)
    np.testing.assert_allclose(atlas.box, [[-16] * 3, [16] * 3])


def test_labels_are_possible_near_where_a_head_has_them_and_nowhere_else(run):
    """There they keep what training gave them, also where they were not seen themselves."""
    maps, steps = run
    labels, state = default_labels(), steps[-1][0]
    atlas = to_atlas(state, maps, labels, SETTINGS, {})
    trained = [s.trained for s in labels.structures]
    alpha = atlas.alpha[:, trained]
    possible = np.zeros_like(alpha, bool)
    for x, values in zip(state.positions, maps):
        owners = tetra.owners(x, state.tetrahedra, values.shape)
        for k in np.unique(values):
            seen = state.reference[np.unique(state.tetrahedra[owners[values == k]])]
            distance = np.linalg.norm(state.reference[:, None] - seen, axis=2).min(1)
            possible[:, k] |= distance <= REACH
    np.testing.assert_array_equal(alpha > 0, possible)
    assert (alpha[:, 0] == 1).any()
    expected = np.where(possible, state.alpha, 0)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(alpha / alpha.sum(1, keepdims=True), expected, rtol=1e-5)


def test_values_beyond_the_table_are_refused(run):
    maps, _ = run
    with pytest.raises(ValueError, match="below 17"):
        next(train(maps + 16, default_labels(), replace(SETTINGS, polish=0), seed=0))
