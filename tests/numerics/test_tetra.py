import numba as nb
import numpy as np
import pytest
import reference_tetra as ref

from tumoar.numerics import tetra
from tumoar.numerics.tetra_raster import rasterize

SHAPE = (5, 5, 7)


TIED = dict(ref.tied_meshes())


@pytest.mark.parametrize("name", TIED)
def test_ownership_is_exact(name):
    nodes, tetrahedra = TIED[name]
    expected = ref.exact_owners(nodes, tetrahedra, SHAPE)
    owner = tetra.owners(nodes, tetrahedra, SHAPE)
    for x in np.ndindex(SHAPE):
        assert len(expected[x]) <= 1
        assert owner[x] == (expected[x][0] if expected[x] else -1), x
    assert tetra.voxel_counts(nodes, tetrahedra, SHAPE).sum() == (owner >= 0).sum()


@pytest.mark.parametrize("make", [ref.kuhn, ref.five, ref.body_centered])
@pytest.mark.parametrize("jitter", [0.0, 0.2, 1e-12])
@pytest.mark.parametrize(("spacing", "origin"), [(3.0, 0.0), (3.0, -0.5), (3.2, -1.6), (16 / 7, -0.3)])
def test_every_voxel_of_a_box_has_one_owner(make, jitter, spacing, origin, rng):
    nodes, tetrahedra = ref.jittered(*make((6, 6, 6), spacing, origin), jitter * spacing, rng)
    shape = (24, 23, 22)
    owner = tetra.owners(nodes, tetrahedra, shape)
    center = np.moveaxis(np.indices(shape), 0, -1)
    # Closed below, open above: that is what the shift says about the hull.
    low, high = nodes.min(0), nodes.max(0)
    inside = ((center >= low) & (center < high)).all(-1)
    assert np.array_equal(owner >= 0, inside)
    assert tetra.voxel_counts(nodes, tetrahedra, shape).sum() == inside.sum()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_volumes_sum_to_the_hull(rng):
    nodes, tetrahedra = ref.jittered(*ref.body_centered((3, 4, 5), 2.0), 0.3, rng)
    assert tetra.volumes(nodes, tetrahedra).sum() == pytest.approx(3 * 4 * 5 * 8, rel=1e-12)


def test_spatial_order_is_a_permutation_that_keeps_neighbors_together(rng):
    nodes, tetrahedra = ref.kuhn((6, 6, 6), 8.0)
    shuffled = rng.permutation(tetrahedra)
    order = tetra.spatial_order(nodes, shuffled)
    assert np.array_equal(np.sort(order), np.arange(len(tetrahedra)))
    center = nodes[shuffled[order]].mean(1)
    assert np.median(np.linalg.norm(np.diff(center, axis=0), axis=1)) < 8.0


def test_linear_functions_are_reproduced(rng):
    nodes, tetrahedra = ref.jittered(*ref.body_centered((3, 3, 3), 4.0, -0.7), 0.8, rng)
    shape = (11, 11, 11)
    slope = np.array([[0.02, 0.03, 0.01], [0.0, 0.01, 0.05]])
    alpha = (nodes @ slope.T + 0.2).astype(np.float32)
    out = rasterize(nodes, tetrahedra, alpha, shape)
    expected = np.moveaxis(np.indices(shape), 0, -1) @ slope.T + 0.2
    np.testing.assert_allclose(out, expected, atol=3e-7)


def test_rasterize_equals_its_slow_twin(rng):
    nodes, tetrahedra = ref.random_delaunay(80, 7, rng)
    alpha = rng.dirichlet(np.full(5, 0.3), len(nodes)).astype(np.float32)
    out = rasterize(nodes, tetrahedra, alpha, SHAPE)
    expected = ref.interpolate(nodes, tetrahedra, alpha, tetra.owners(nodes, tetrahedra, SHAPE))
    np.testing.assert_allclose(out, expected, atol=3e-7)
    np.testing.assert_allclose(out.sum(-1), 1.0, atol=1e-6)
    assert out.min() >= 0.0


@pytest.mark.parametrize("outside", [0, 3])
def test_tetrahedra_that_are_outside_alone_are_as_if_visited(outside, rng):
    """Half of the corners are one label alone: their tetrahedra may be passed over, those beside them not."""
    nodes, tetrahedra = ref.body_centered((3, 3, 3), 4.0, -0.5)
    alpha = rng.dirichlet(np.full(5, 0.3), len(nodes)).astype(np.float32)
    alpha[nodes[:, 0] < 6] = np.eye(5, dtype=np.float32)[3]
    assert (alpha[tetrahedra] == np.eye(5, dtype=np.float32)[3]).all((1, 2)).any()
    out = rasterize(nodes, tetrahedra, alpha, (11, 11, 11), outside)
    expected = ref.interpolate(nodes, tetrahedra, alpha, tetra.owners(nodes, tetrahedra, (11, 11, 11)))
    np.testing.assert_allclose(out, expected, atol=3e-7)


@pytest.mark.parametrize("shift", [0.0, 0.5, 1 / 3])
def test_no_voxel_of_a_lattice_is_left_out(shift, rng):
    nodes, tetrahedra = ref.kuhn((4, 4, 4), 3.0, -shift)
    alpha = rng.dirichlet(np.full(3, 0.3), len(nodes)).astype(np.float32)
    out = rasterize(nodes, tetrahedra, alpha, (11, 11, 11))
    expected = ref.interpolate(nodes, tetrahedra, alpha, tetra.owners(nodes, tetrahedra, (11, 11, 11)))
    np.testing.assert_allclose(out, expected, atol=3e-7)


def test_voxels_outside_the_hull_get_the_outside_label(rng):
    nodes, tetrahedra = ref.kuhn((2, 2, 2), 2.0, 1.0)
    alpha = np.tile(np.float32([0.25, 0.5, 0.25]), (len(nodes), 1))
    out = rasterize(nodes, tetrahedra, alpha, SHAPE, outside=2)
    inside = tetra.owners(nodes, tetrahedra, SHAPE) >= 0
    assert inside.sum() == 4**3
    assert (out[~inside] == [0, 0, 1]).all()
    np.testing.assert_allclose(out[inside], [[0.25, 0.5, 0.25]] * 64, atol=1e-6)


@pytest.mark.parametrize("scale", [1e3, 1e9, 1e18])
def test_nodes_far_outside_the_grid_are_harmless(scale, rng):
    nodes = np.array([[-1, -1, -1], [3, -1, -1], [-1, 3, -1], [-1, -1, 3]]) * scale
    owner = tetra.owners(nodes, np.array([[0, 1, 2, 3]], np.int32), SHAPE)
    assert (owner == 0).all()


def test_folded_meshes_are_refused():
    nodes, tetrahedra = ref.kuhn((1, 1, 1), 2.0)
    with pytest.raises(ValueError, match="positive volume"):
        tetra.owners(nodes, tetrahedra[:, [1, 0, 2, 3]], SHAPE)
    flat = nodes * [1, 1, 0]
    with pytest.raises(ValueError, match="positive volume"):
        rasterize(flat, tetrahedra, np.ones((len(nodes), 1), np.float32), SHAPE)


def test_bits_do_not_depend_on_the_number_of_threads(rng):
    nodes, tetrahedra = ref.jittered(*ref.body_centered((6, 6, 6), 4.0), 0.5, rng)
    alpha = rng.dirichlet(np.full(5, 0.3), len(nodes)).astype(np.float32)
    results = []
    before = nb.get_num_threads()
    for threads in (1, before):
        nb.set_num_threads(threads)
        results.append(rasterize(nodes, tetrahedra, alpha, (24, 24, 24)))
    nb.set_num_threads(before)
    assert results[0].tobytes() == results[1].tobytes()


def test_values_of_any_sign_are_interpolated(rng):
    nodes, tetrahedra = ref.random_delaunay(80, 7, rng)
    shift = rng.normal(size=(len(nodes), 3)).astype(np.float32)
    out = rasterize(nodes, tetrahedra, shift, SHAPE)
    expected = ref.interpolate(nodes, tetrahedra, shift, tetra.owners(nodes, tetrahedra, SHAPE))
    np.testing.assert_allclose(out, expected, atol=1e-6)
