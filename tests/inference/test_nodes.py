"""Moves of the nodes: what a patch costs, which patches move at once, and that a chain continues exactly.

That they leave the posterior as it is: here for fixed θ and z, with all else in test_geweke_nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
import pytest
import small_head
import tiny_model as tiny
from scipy.special import logsumexp
from tiny_mesh import MODELS, TinyMesh

from tumoar.inference import gem, gibbs, nodes
from tumoar.inference.schedule import Schedule
from tumoar.model import deformation, joint
from tumoar.model.patches import build_families
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.numerics import tetra
from tumoar.numerics.voxels import UNUSED
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig, Level


@pytest.fixture(scope="module")
def prepared():
    """The small head after Algorithm 2, and a chain that moves its nodes in every second sweep."""
    case = small_head.case()
    levels = (Level(spacing=1, smoothing=0),)
    g = GemConfig(levels=levels, outer_iterations=1, em_iterations=5, deformation_steps=3)
    config = Config(gem=g, gibbs=GibbsConfig(full_every=3, rest_every=3, burn_in=6, nodes_every=2))
    fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, g)
    shapes = (FirstOrderMRF(0.3), FirstOrderMRF(0.1))
    return gibbs.initialize_chain(case, fit, shapes, small_head.TUMOR_MM3, config, seed=3)


@pytest.fixture(scope="module")
def likelihoods(prepared):
    c, state = prepared
    return nodes.find_likelihoods(c.mesh.placed, c.volume, state.theta, state.labels.z, c.tau)


def test_costs_of_tetrahedra_sum_to_the_cost_of_the_mesh(prepared, likelihoods):
    c, state = prepared
    mesh, eta = c.mesh, state.mesh.nodes
    each = nodes.find_costs(mesh, eta, mesh.placed.tetrahedra, likelihoods)
    assert each.sum() == pytest.approx(
        deformation.cost(mesh.placed, eta, mesh.alpha, likelihoods)[0], rel=1e-12
    )
    some = np.random.default_rng(0).permutation(len(each))[:777]
    again = nodes.find_costs(mesh, eta, mesh.placed.tetrahedra[some], likelihoods)
    np.testing.assert_allclose(again, each[some], rtol=1e-9, atol=1e-9)


def test_cost_is_minus_the_log_of_nodes_given_everything_but_l_and_t():
    """Against the sum over all labels of each voxel, with z and y given, in a model with unused voxels."""
    m = MODELS["held, unseen, unused"]
    rng = np.random.default_rng(1)
    theta, (first, second) = m.model.draw_theta(rng), m.draw_nodes(rng, 2)
    labels = m.at(first).draw_labels(rng)
    D, _ = m.model.simulate(theta, labels, rng)
    volume = joint.build_volume(D, m.model.in_use)
    L = nodes.find_likelihoods(m.placed, volume, theta, labels.z)
    cost = [nodes.find_costs(m.mesh, eta, m.placed.tetrahedra, L).sum() for eta in (first, second)]
    expected = []
    for eta in (first, second):
        model = m.at(eta)
        states = logsumexp(model.log_states(model.mixture_densities(theta, D)), axis=1)
        level = (labels.z + labels.y).astype(int)
        of_voxel = np.take_along_axis(states, level[None], 0)[0]
        expected.append(m.energies(eta) - of_voxel[m.model.in_use != UNUSED].sum())
    assert cost[1] - cost[0] == pytest.approx(expected[1] - expected[0], abs=1e-4)


def test_families_reach_every_free_node_and_never_share_a_tetrahedron(prepared):
    c, _ = prepared
    placed = c.mesh.placed
    families = build_families(placed)
    single = np.concatenate([f.node for f in families if len(f.node) == len(f)])
    assert np.array_equal(np.sort(single), np.flatnonzero(placed.kind != 7))
    assert [f.first for f in families[1:]] == [f.last for f in families[:-1]]
    for f in families:
        assert len(np.unique(f.node)) == len(f.node)
        patch = np.full(len(placed.reference), -1)
        patch[f.node] = f.of_node
        seen = patch[placed.tetrahedra]
        highest = seen.max(1)
        assert (np.where(seen < 0, highest[:, None], seen) == highest[:, None]).all()
        assert np.array_equal(f.tetrahedron, np.flatnonzero(highest >= 0))
        assert np.array_equal(f.owner, highest[f.tetrahedron])
        assert np.array_equal(f.corners, placed.tetrahedra[f.tetrahedron])


@pytest.mark.slow
def test_first_steps_are_accepted_about_as_often_as_aimed_at(prepared, likelihoods):
    c, state = prepared
    now = state.mesh
    for i in range(6):
        now = nodes.move(c.mesh, now, likelihoods, np.random.default_rng(i), tunes=True)
        assert 0.2 < now.accepted < 0.6
    assert now.accepted == pytest.approx(nodes.TARGET, abs=0.05)
    held = nodes.move(c.mesh, now, likelihoods, np.random.default_rng(6), tunes=False)
    assert np.array_equal(held.log_step, now.log_step)


def test_meshes_never_fold_and_nodes_stay_in_the_faces_of_the_box(prepared, likelihoods):
    c, state = prepared
    mesh, eta = c.mesh, state.mesh.nodes
    now = replace(state.mesh, log_step=np.full(len(mesh.step), 1.5))  # many proposals fold
    for i in range(4):
        now = nodes.move(mesh, now, likelihoods, np.random.default_rng(i), tunes=False)
    assert 0 < now.accepted < 0.2
    assert tetra.volumes(now.nodes, mesh.placed.tetrahedra).min() > 0
    fixed = mesh.placed.atlas.fixed
    np.testing.assert_allclose(now.nodes[fixed], eta[fixed], atol=1e-9)
    assert (now.nodes[~fixed] != eta[~fixed]).mean() > 0.2


def test_bits_do_not_depend_on_threads(prepared, likelihoods):
    c, state = prepared
    before, found = numba.get_num_threads(), []
    for threads in range(1, min(4, numba.config.NUMBA_NUM_THREADS) + 1):
        numba.set_num_threads(threads)
        moved = nodes.move(c.mesh, state.mesh, likelihoods, np.random.default_rng(0), tunes=True)
        found.append((moved.nodes.tobytes(), moved.log_step.tobytes()))
    numba.set_num_threads(before)
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("begin", "sweeps"),
    [
        pytest.param(0, 6, id="before the first move", marks=pytest.mark.slow),
        pytest.param(1, 4, id="right after it"),
        pytest.param(2, 6, id="between two", marks=pytest.mark.slow),
    ],
)
def test_saved_and_loaded_it_continues_exactly(prepared, begin, sweeps):
    c, state = prepared
    straight = []
    for _ in range(sweeps):
        state, info = gibbs.sweep(c, state)
        straight.append(gibbs.to_arrays(state))
        assert (info.moved > 0) == (info.sweep % 2 == 0)
    assert {"mesh_nodes", "mesh_log_step"} <= set(straight[0])
    state = gibbs.from_arrays({k: v.copy() for k, v in straight[begin].items()})
    for expected in straight[begin + 1 :]:
        state, _ = gibbs.sweep(c, state)
        np.testing.assert_equal(gibbs.to_arrays(state), expected)


@pytest.mark.slow
def test_a_sweep_that_moves_nodes_draws_the_rows_that_rest(prepared):
    c, state = prepared
    c = replace(c, schedule=Schedule(full_every=20, rest_every=20, burn_in=40, nodes_every=4))
    drawn = []
    for sweep in range(1, 10):
        before = state
        state, _ = gibbs.sweep(c, state)
        if state.rest is not before.rest:
            drawn.append(sweep)
    assert drawn == [2, 4, 8]  # the first after a full one, and those that move the nodes


@pytest.mark.slow
def test_while_nodes_do_not_move_nothing_changes(prepared):
    c, state = prepared
    still = replace(c, schedule=replace(c.schedule, nodes_every=100))
    off = replace(c, mesh=None, schedule=replace(c.schedule, nodes_every=0))
    here, there = state, replace(state, mesh=None)
    for _ in range(4):
        here, _ = gibbs.sweep(still, here)
        there, _ = gibbs.sweep(off, there)
        kept = {k: v for k, v in gibbs.to_arrays(here).items() if not k.startswith("mesh_")}
        np.testing.assert_equal(kept, gibbs.to_arrays(there))
    assert Config().gibbs.nodes_every == 0


# ---- the posterior of the nodes, θ, z and y being fixed ----------------------------------------------------


def exact(m: TinyMesh, L: np.ndarray, rng: np.random.Generator, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in their box and their weights exp(−cost)."""
    eta = m.draw_uniform(rng, draws)
    near = m.energies(eta) < 15
    cost = np.array([nodes.find_costs(m.mesh, x, m.placed.tetrahedra, L).sum() for x in eta[near]])
    weight = np.exp(cost.min() - cost)
    return eta[near], weight / weight.sum()


@pytest.mark.parametrize("name", ["cRBM", pytest.param("two cells", marks=pytest.mark.slow)])
def test_moves_draw_from_the_posterior_of_the_nodes(name):
    m = MODELS[name]
    rng = np.random.default_rng(3)
    theta, eta = tiny.theta(), m.draw_nodes(rng, 1)[0]
    labels = m.at(eta).draw_labels(rng)
    D, _ = m.model.simulate(theta, labels, rng)
    L = nodes.find_likelihoods(m.placed, joint.build_volume(D, m.model.in_use), theta, labels.z)
    points, weight = exact(m, L, rng, 20_000)
    free = [f.node for f in m.free]

    def moments(x: np.ndarray) -> np.ndarray:
        flat = x[:, free].reshape(len(x), -1)
        flat = flat[:, flat.std(0) > 1e-9]
        pairs = flat[:, :, None] * flat[:, None]
        return np.concatenate([flat, pairs.reshape(len(x), -1)], 1)

    of_points = moments(points)
    mean = weight @ of_points
    error = np.sqrt(weight**2 @ (of_points - mean) ** 2)
    now, path = nodes.MeshState(eta, np.zeros(len(m.mesh.step))), []
    for i in range(3_200):
        now = nodes.move(m.mesh, now, L, rng, tunes=i < 200)
        path.append(now.nodes)
    drawn = moments(np.array(path[200:]))
    batches = drawn.reshape(50, -1, drawn.shape[1]).mean(1)
    z = (batches.mean(0) - mean) / np.sqrt(error**2 + batches.var(0, ddof=1) / 50)
    assert np.abs(z).max() < 4
