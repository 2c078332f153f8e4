"""The voxel passes and their sums, slow and obvious, in float64 over whole arrays."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import logsumexp

from tumoar.model.gmm import Moments, Theta


@cache
def basis(shape: tuple[int, ...], count: int = 4) -> np.ndarray:
    """(count, count, count, X, Y, Z) products of cosines, all of them."""
    a, b, c = (np.cos(np.pi * np.outer(np.arange(count), np.arange(n) + 0.5) / n) for n in shape)
    return np.einsum("ax,by,cz->abcxyz", a, b, c)


def log_components(theta: Theta, D: np.ndarray) -> np.ndarray:
    """(Q, X, Y, Z) log γ_q N(d | μ_q + C φ, Σ_q)."""
    corrected = D - np.tensordot(theta.C, basis(D.shape[1:]), axes=3)
    out = []
    for gamma, mu, Sigma in zip(theta.gamma, theta.mu, theta.Sigma):
        e = corrected - mu[:, None, None, None]
        distance = (e * np.tensordot(np.linalg.inv(Sigma), e, axes=1)).sum(0)
        out.append(np.log(gamma) - 0.5 * (distance + np.linalg.slogdet(2 * np.pi * Sigma)[1]))
    return np.array(out)


def moments(D: np.ndarray, t: np.ndarray) -> Moments:
    """Sums over voxels weighted by t (Q, X, Y, Z), zero where nothing is modeled."""
    shape = D.shape[1:]
    D = np.where(t.sum(0) > 0, D, 0.0)
    return Moments(
        n=t.sum((1, 2, 3)),
        d=np.einsum("qxyz,nxyz->qn", t, D),
        dd=np.tensordot(t[:, None] * D, D, axes=([2, 3, 4], [1, 2, 3])),
        cos=np.tensordot(t, basis(shape, 7), axes=([1, 2, 3], [3, 4, 5])),
        dcos=np.tensordot(t[:, None] * D, basis(shape), axes=([2, 3, 4], [3, 4, 5])),
    )


def expectation(theta: Theta, D: np.ndarray, P: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, float]:
    """Expected t (Q, X, Y, Z) given the prior P (Q, X, Y, Z) of each component's mixture, and Σ log p(d)."""
    with np.errstate(divide="ignore"):
        joint = log_components(theta, D) + np.log(P)
    evidence = logsumexp(joint, axis=0)
    return np.where(mask, np.exp(joint - evidence), 0.0), float(evidence[mask].sum())


def mixture_prior(pi: np.ndarray, groups) -> np.ndarray:
    """(mixtures, X, Y, Z) prior mass of each mixture: weighted sum of the columns of pi it is made of."""
    out = []
    for x in range(len(groups.level)):
        j = slice(groups.start[x], groups.start[x + 1])
        out.append((pi[..., groups.column[j]] * groups.weight[j]).sum(-1))
    return np.array(out, float)


def states(groups) -> list[tuple[int, int, float]]:
    """All (column, mixture, weight) triples: what a voxel may be."""
    return [
        (int(groups.column[j]), x, float(groups.weight[j]))
        for x in range(len(groups.level))
        for j in range(groups.start[x], groups.start[x + 1])
    ]


def state_posterior(theta: Theta, D, pi, groups, fields=()) -> np.ndarray:
    """(states, X, Y, Z) p(l, z, y | d, θ, fields), with t summed out."""
    components = log_components(theta, D)
    rows = []
    for column, x, weight in states(groups):
        likelihood = logsumexp(components[groups.x_of_q == x], axis=0)
        with np.errstate(divide="ignore"):
            log_prior = np.log(weight * pi[..., column].astype(float))
        rows.append(likelihood + log_prior + sum(fields[: groups.level[x]]))
    rows = np.array(rows)
    return np.exp(rows - logsumexp(rows, axis=0))
