"""How the sensitivity of a coil fades over a head: a smooth field on the log of MR intensities.

Intensities are taken as a mixture of a few normal densities that know of no place, times a field that is a
polynomial of it. Both are estimated in turn by expectation maximization, the polynomial degree by degree:
what is left is as sharp a histogram as a smooth field can make it. No atlas takes part, so that the field is
known before a head is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

DEGREES = (1, 2, 3)
PASSES = 25
"""Of expectation maximization, for each degree."""
COMPONENTS = 6
LEAST_SD = 0.06
"""In logs: no tissue is more uniform than this in blocks of a few mm."""
EXPECTED = 1.0
"""SD of each coefficient, in logs, as before the image is seen."""
CORRELATED = 50.0
"""Samples that count as one."""


def estimate_fading(v: Values, where: Values) -> tuple[Values, Values]:
    """Coefficients and box (2, 3) of the field of log intensities v (n,) at positions (n, 3)."""
    box = np.stack([where.min(0), where.max(0)])
    every = polynomials(where, box, DEGREES[-1])
    means = np.quantile(v, (np.arange(COMPONENTS) + 0.5) / COMPONENTS)
    variances = np.full(COMPONENTS, max(v.std() / COMPONENTS, LEAST_SD) ** 2)
    parts = np.full(COMPONENTS, 1 / COMPONENTS)
    coefficients = np.zeros(every.shape[1])
    for degree in DEGREES:
        free = polynomial_count(degree)
        basis = every[:, :free]
        for _ in range(PASSES):
            flat = v - _product(basis, coefficients[:free])
            weights = _posterior(flat, means, variances, parts)
            total = weights.sum(0) + 1e-9
            parts = total / total.sum()
            means = (weights * flat[:, None]).sum(0) / total
            variances = (weights * (flat[:, None] - means) ** 2).sum(0) / total + LEAST_SD**2
            precision = (weights / variances).sum(1)
            expected = (weights * (means / variances)).sum(1) / precision
            weighted = basis * precision[:, None]
            H = np.einsum("ia,ib->ab", weighted, basis) / CORRELATED
            g = np.einsum("ia,i->a", weighted, v - expected) / CORRELATED
            coefficients[:free] = np.linalg.solve(H + np.eye(free) / EXPECTED**2, g)
    return coefficients, box


def fading_at(where: Values, coefficients: Values, box: Values) -> Values:
    """(n,) the field at positions (n, 3); outside the box as at its edge."""
    return _product(polynomials(np.clip(where, box[0], box[1]), box, DEGREES[-1]), coefficients)


def polynomial_count(degree: int) -> int:
    """How many polynomials there are up to a degree, but the constant."""
    return (degree + 1) * (degree + 2) * (degree + 3) // 6 - 1


def polynomials(where: Values, box: Values, degree: int) -> Values:
    """(n, P) products of Legendre polynomials in a box up to a total degree, but the constant, by degree."""
    x = 2 * (where - box[0]) / np.maximum(box[1] - box[0], 1.0) - 1
    legendre = [np.ones_like(x), x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2]
    out = []
    for total in range(1, degree + 1):
        for axes in combinations_with_replacement(range(3), total):
            powers: Sequence[int] = [axes.count(a) for a in range(3)]
            out.append(np.prod([legendre[p][:, a] for a, p in enumerate(powers)], axis=0))
    return np.stack(out, 1)


def _product(basis: Values, coefficients: Values) -> Values:
    """Summed in a fixed order, for the same bits on any number of threads."""
    return np.asarray(np.einsum("ia,a->i", basis, coefficients))


def _posterior(v: Values, means: Values, variances: Values, parts: Values) -> Values:
    logs = np.log(parts + 1e-12) - 0.5 * np.log(variances) - (v[:, None] - means) ** 2 / (2 * variances)
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))
