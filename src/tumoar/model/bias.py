"""Bias fields C φ_i: the 4 x 4 x 4 lowest functions of the 3-D discrete cosine transform (section 3.3).

φ is a product of one cosine per axis, so Φ (I x 64) is never stored. Since cos a cos b = (cos(a+b) +
cos(a−b)) / 2, seven cosines per axis represent all products of two functions: Φᵀ W Φ follows from the
7 x 7 x 7 sums Σ_i w_i cos cos cos.

The constant function is clamped: the likelihood depends only on its sum with the means, and with flat priors
on both the posterior would be improper. 63 coefficients per contrast are free.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tumoar.numerics.voxels import FUNCTIONS as PER_AXIS
from tumoar.numerics.voxels import HARMONICS

Array = npt.NDArray[np.floating]


def cosines(n: int, count: int = HARMONICS) -> Array:
    """(n, count) functions of the DCT-II along an axis of n voxels: cos(π k (i + 1/2) / n)."""
    return np.cos(np.pi / n * np.outer(np.arange(n) + 0.5, np.arange(count)))


def field(C: Array, shape: tuple[int, ...]) -> Array:
    """(N, X, Y, Z) values of C φ_i for coefficients C (N, 4, 4, 4)."""
    a, b, c = (cosines(n, PER_AXIS) for n in shape)
    rows = np.einsum("nabc,zc->nabz", C, c)
    planes = np.einsum("nabz,yb->nayz", rows, b)
    return np.einsum("nayz,xa->nxyz", planes, a)


def phi_sums(cos: Array) -> Array:
    """(..., 64) sums Σ_i w_i φ_i, a subset of the cosine sums (..., 7, 7, 7)."""
    low = cos[..., :PER_AXIS, :PER_AXIS, :PER_AXIS]
    return low.reshape(*low.shape[:-3], PER_AXIS**3)


def gram(cos: Array) -> Array:
    """(..., 64, 64) sums Σ_i w_i φ_i φ_iᵀ from the cosine sums (..., 7, 7, 7)."""
    first = cos.ndim - 3
    products = cos
    for _ in range(3):  # the first remaining axis becomes two at the end: ijk, jkad, kadbe, adbecf
        products = np.tensordot(products, _PRODUCT, (first, 2))
    a, d, b, e, c, f = range(first, first + 6)
    ordered = products.transpose(*range(first), a, b, c, d, e, f)
    return ordered.reshape(*cos.shape[:-3], PER_AXIS**3, PER_AXIS**3)


def _product_table() -> Array:
    """T with cos_a cos_b = Σ_k T[a, b, k] cos_k."""
    T = np.zeros((PER_AXIS, PER_AXIS, HARMONICS))
    for a in range(PER_AXIS):
        for b in range(PER_AXIS):
            T[a, b, a + b] += 0.5
            T[a, b, abs(a - b)] += 0.5
    return T


_PRODUCT = _product_table()
