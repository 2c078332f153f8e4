"""Edge collapse: shorter descriptions, whole meshes, protected nodes, any number of threads."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
import pytest
from ball_maps import two_balls

from tumoar.numerics import tetra, tetra_labels
from tumoar.numerics.tetra_prior import elastic_energy
from tumoar.train.atlas import AtlasSettings, Level, train
from tumoar.train.collapse import collapse, list_edges
from tumoar.train.mesh import quality
from tumoar.vocabulary.labels import default_labels

SETTINGS = AtlasSettings(levels=(Level((5.0,), 1),), collapses=0)


@pytest.fixture(scope="module")
def trained():
    maps = np.stack([two_balls(6.0), two_balls(7.0)])
    *_, (state, _) = train(maps, default_labels(), SETTINGS, seed=0)
    _, counts = tetra_labels.counts(state.positions, state.tetrahedra, state.alpha, maps, SETTINGS.floor)
    return maps, state, counts


def _collapsed(trained, protected=None, seed=0):
    maps, state, counts = trained
    protected = np.zeros(len(state.reference), bool) if protected is None else protected
    return collapse(state, maps, counts, protected, SETTINGS, np.random.default_rng(seed))


def test_the_mesh_stays_whole_and_unfolded(trained):
    after = _collapsed(trained)
    maps, before, _ = trained
    assert len(after.reference) < 0.8 * len(before.reference)
    for nodes in (after.reference, *after.positions):
        volumes = tetra.volumes(nodes, after.tetrahedra)
        assert volumes.min() > 0
        assert volumes.sum() == pytest.approx(maps[0].size, rel=1e-9)
        assert (tetra.owners(nodes, after.tetrahedra, maps[0].shape) >= 0).all()
    assert quality(after.reference, after.tetrahedra).min() >= min(
        SETTINGS.min_quality, quality(before.reference, before.tetrahedra).min()
    )


def test_the_cost_hardly_rises(trained):
    """A collapse may cost at most what it saves in naming nodes: here under a tenth of the whole."""
    maps, before, _ = trained
    after = _collapsed(trained)

    def cost(state):
        data, _ = tetra_labels.counts(state.positions, state.tetrahedra, state.alpha, maps, SETTINGS.floor)
        return data + sum(
            elastic_energy(x, state.reference, state.tetrahedra, 0.1)[0] for x in state.positions
        )

    assert cost(after) < 1.1 * cost(before)


def test_nodes_stay_where_borders_are(trained):
    _, before, _ = trained
    after = _collapsed(trained)

    def share_near_border(state):
        distance = np.linalg.norm(state.reference - 15.5, axis=1)
        return np.mean((distance > 3) & (distance < 15))

    assert share_near_border(after) > share_near_border(before)


def test_protected_nodes_stay(trained):
    _, before, _ = trained
    protected = np.linalg.norm(before.reference - 15.5, axis=1) < 8
    after = _collapsed(trained, protected)
    kept = {tuple(x) for x in after.reference}
    assert protected.any()
    assert all(tuple(x) in kept for x in before.reference[protected])


@pytest.mark.slow
def test_threads_do_not_change_bits(trained):
    results = []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        after = _collapsed(trained)
        results.append((after.reference.tobytes(), after.positions.tobytes(), after.alpha.tobytes()))
    assert results[0] == results[1]


def test_dissimilar_nodes_are_not_tried(trained):
    maps, before, counts = trained
    strict = replace(SETTINGS, alike=-1.0)
    none = np.zeros(len(before.reference), bool)
    after = collapse(before, maps, counts, none, strict, np.random.default_rng(0))
    assert len(after.reference) == len(before.reference)


def test_every_edge_once():
    edges = list_edges(np.array([[0, 1, 2, 3], [1, 2, 3, 4]]))
    assert len(edges) == 9
    assert (edges[:, 0] < edges[:, 1]).all()
