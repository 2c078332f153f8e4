import numba as nb
import numpy as np
import pytest
import reference_tetra as ref

from tumoar.numerics import tetra
from tumoar.numerics import tetra_voxels as tv
from tumoar.numerics.tetra import scratch

TIED = dict(ref.tied_meshes())


@nb.njit
def listed(nodes, tetrahedra, shape):
    """Per voxel: how many lists it is in, the last tetrahedron that listed it, and its coordinates."""
    size = shape[0] * shape[1] * shape[2]
    times, owner = np.zeros(size, np.int64), np.full(size, -1, np.int32)
    b = np.zeros((size, 4))
    x = np.zeros((size, 3))
    most = 0
    q, G, N, W = scratch(), tv.group(), tv.indices(), tv.values(0)
    for first in range(0, len(tetrahedra), tv.GROUP):
        last = min(len(tetrahedra), first + tv.GROUP)
        tv.prepare_group(G, nodes, tetrahedra, first, last, shape)
        for t in range(first, last):
            lane = t - first
            box = tv.four(G, lane, tv.FIRST)
            gx, gy, gz = tv.four(G, lane, tv.GRAD_X), tv.four(G, lane, tv.GRAD_Y), tv.four(G, lane, tv.GRAD_Z)
            base = tv.four(G, lane, tv.BASE)
            most = max(most, tv.parts(G, lane))
            for part in range(tv.parts(G, lane)):
                n = tv.list_owned(G, lane, part, q, nodes, tetrahedra[t], shape, N, W)
                for v in range(n):
                    at = N[tv.AT + v]
                    times[at] += 1
                    owner[at] = t
                    place = W[tv.X + v], W[tv.Y + v], W[tv.Z + v]
                    for d in range(3):
                        x[at, d] = box[d] + place[d]
                    for w in range(4):
                        b[at, w] = gx[w] * place[0] + gy[w] * place[1] + gz[w] * place[2] + base[w]
    return times, owner, x, b, most


def check(nodes, tetrahedra, shape):
    """The lists hold what `tetra.owners` says, each voxel once and in its place; returns the most parts."""
    times, owner, x, b, most = listed(*tetra.plain(nodes, tetrahedra), shape)
    np.testing.assert_array_equal(owner.reshape(shape), tetra.owners(nodes, tetrahedra, shape))
    np.testing.assert_array_equal(times, owner >= 0)
    inside = np.flatnonzero(owner >= 0)
    np.testing.assert_array_equal(x[inside], np.argwhere(owner.reshape(shape) >= 0))
    found = np.einsum("vw,vwd->vd", b[inside], nodes[tetrahedra[owner[inside]]])
    np.testing.assert_allclose(found, x[inside], atol=1e-6)
    np.testing.assert_allclose(b[inside].sum(1), 1.0, atol=1e-9)
    return most


@pytest.mark.parametrize("name", TIED)
def test_lists_agree_with_exact_ownership(name):
    check(*TIED[name], (5, 5, 7))


@pytest.mark.parametrize("seed", range(30))
def test_lists_agree_on_random_meshes(seed):
    rng = np.random.default_rng(seed)
    nodes, tetrahedra = ref.random_delaunay(int(rng.integers(5, 300)), 24, rng)
    check(nodes, tetrahedra, (22, 23, 25))


@pytest.mark.parametrize("squeeze", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("axis", range(3))
def test_lists_agree_on_slivers(squeeze, axis):
    rng = np.random.default_rng(5)
    nodes, tetrahedra = ref.jittered(*ref.body_centered((2, 2, 2), 8.0, -1.0), 2.0, rng)
    nodes[:, axis] = 5.0 + (nodes[:, axis] - 5.0) * squeeze
    check(nodes, tetrahedra, (16, 15, 14))


def test_long_lists_come_in_parts():
    rng = np.random.default_rng(6)
    nodes, tetrahedra = ref.random_delaunay(3, 60, rng)
    assert check(nodes, tetrahedra, (61, 47, 53)) > 3


def test_a_mesh_beyond_the_grid_is_cut_off():
    rng = np.random.default_rng(7)
    nodes, tetrahedra = ref.random_delaunay(60, 24, rng)
    check(nodes * 3.0 - 30.0, tetrahedra, (9, 8, 7))
    check(nodes - 100.0, tetrahedra, (9, 8, 7))
