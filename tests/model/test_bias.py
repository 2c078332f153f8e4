"""The cosine basis: what flips do to it, and Φᵀ W Φ without Φ."""

from __future__ import annotations

import numpy as np
import pytest
import reference_voxels as reference

from tumoar.model import bias

SHAPE = (9, 8, 11)


def test_field_is_the_sum_of_its_functions():
    C = np.random.default_rng(0).standard_normal((2, 4, 4, 4))
    expected = np.einsum("nabc,abcxyz->nxyz", C, reference.basis(SHAPE))
    np.testing.assert_allclose(bias.field(C, SHAPE), expected, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_flip_of_the_grid_maps_every_function_to_plus_or_minus_itself(axis):
    C = np.random.default_rng(1).standard_normal((1, 4, 4, 4))
    sign = (-1.0) ** np.arange(4)
    flipped = C * np.expand_dims(sign, [i for i in range(4) if i != axis + 1])
    np.testing.assert_allclose(
        np.flip(bias.field(C, SHAPE), axis + 1), bias.field(flipped, SHAPE), atol=1e-12
    )


def test_gram_from_cosine_sums_equals_the_direct_product():
    w = np.random.default_rng(2).random(SHAPE)
    cos = np.einsum("xyz,abcxyz->abc", w, reference.basis(SHAPE, 7))
    Phi = reference.basis(SHAPE).reshape(64, -1)
    np.testing.assert_allclose(bias.gram(cos[None])[0], (Phi * w.ravel()) @ Phi.T, atol=1e-10)
    np.testing.assert_allclose(bias.phi_sums(cos), Phi @ w.ravel(), atol=1e-10)
