"""Slow, obvious twins of the label-map kernels."""

from __future__ import annotations

import numpy as np

from tumoar.numerics import tetra


def probabilities(nodes, tetrahedra, alpha, shape):
    """(X, Y, Z, K) by solving for the barycentric coordinates of every voxel in its tetrahedron."""
    owner = tetra.owners(nodes, tetrahedra, shape)
    out = np.zeros((*shape, alpha.shape[1]))
    weights = np.zeros((*shape, 4))
    for index in np.argwhere(owner >= 0):
        corners = nodes[tetrahedra[owner[tuple(index)]]]
        system = np.vstack([corners.T, np.ones(4)])
        weights[tuple(index)] = np.linalg.solve(system, [*index, 1.0])
        out[tuple(index)] = weights[tuple(index)] @ alpha[tetrahedra[owner[tuple(index)]]]
    return out, weights, owner


def cost(nodes, tetrahedra, alpha, values, floor):
    """-sum log L."""
    p, _, owner = probabilities(nodes, tetrahedra, alpha, values.shape)
    L = np.take_along_axis(p, values[..., None].astype(int), -1)[..., 0]
    L = (1 - floor) * L + floor / alpha.shape[1]
    return -np.log(L[owner >= 0]).sum()


def counts(nodes, tetrahedra, alpha, values, floor):
    """(V, K) expected voxels."""
    p, weights, owner = probabilities(nodes, tetrahedra, alpha, values.shape)
    out = np.zeros(alpha.shape)
    for index in np.argwhere(owner >= 0):
        at, l = tuple(index), int(values[tuple(index)])
        L = (1 - floor) * p[at][l] + floor / alpha.shape[1]
        for w, node in zip(weights[at], tetrahedra[owner[at]]):
            out[node, l] += (1 - floor) * w * alpha[node, l] / L
    return out
