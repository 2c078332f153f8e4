"""Exact signs of small polynomials in doubles, by error-free transformations (Dekker 1971, Shewchuk 1997).

Must not be compiled with fastmath: it depends on the rounding of every operation.
"""

from __future__ import annotations

import numpy as np

from tumoar.numerics.jit import inner, kernel


@inner()
def sign_of_det(u0, u1, u2, v0, v1, v2, w0, w1, w2):
    """Sign of the determinant of [u, v, w]: -1, 0 or 1, exact unless products underflow."""
    terms = np.empty(24)
    _triple_product(u1, v2, w0, terms, 0)
    _triple_product(-u2, v1, w0, terms, 4)
    _triple_product(u2, v0, w1, terms, 8)
    _triple_product(-u0, v2, w1, terms, 12)
    _triple_product(u0, v1, w2, terms, 16)
    _triple_product(-u1, v0, w2, terms, 20)
    return _sign_of_sum(terms)


@inner()
def compare_products(a, b, c, d):
    """Sign of a b - c d, exact."""
    p, ep = _two_product(a, b)
    q, eq = _two_product(c, d)
    return np.sign(p - q) if p != q else np.sign(ep - eq)


@kernel()
def _two_sum(a, b):
    """Doubles s and e with a + b = s + e exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@inner()
def _two_product(a, b):
    """Doubles p and e with a b = p + e exactly."""
    p = a * b
    t = 134217729.0 * a
    ah = t - (t - a)
    al = a - ah
    t = 134217729.0 * b
    bh = t - (t - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@inner()
def _triple_product(a, b, c, out, at):
    """Write a b c as an exact sum of four doubles."""
    high, low = _two_product(a, b)
    out[at], out[at + 1] = _two_product(high, c)
    out[at + 2], out[at + 3] = _two_product(low, c)


@inner()
def _sign_of_sum(terms):
    """Sign of the exact sum; the terms are overwritten by a non-overlapping expansion of it."""
    for m in range(1, len(terms)):
        carry = terms[m]
        for l in range(m):
            carry, terms[l] = _two_sum(carry, terms[l])
        terms[m] = carry
    for m in range(len(terms) - 1, -1, -1):  # the last non-zero component outweighs all before it
        if terms[m] != 0.0:
            return np.sign(terms[m])
    return 0.0
