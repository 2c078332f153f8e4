"""The prior of tumor in Algorithm 2: it sums to one, follows what is found, and keeps bias fields out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small_head

from tumoar.geometry.image import Case, Grid, Input
from tumoar.inference import gem
from tumoar.inference.asymmetry import weigh_asymmetry
from tumoar.inference.tumor_prior import LEAST, TumorPrior, find_posterior
from tumoar.model.bias import field
from tumoar.model.theta_prior import build_bias_precision
from tumoar.vocabulary.config import GemConfig
from tumoar.vocabulary.contrasts import find_contrast

SHAPE = (5, 6, 7)
BRAIN = np.array([0, 2])


def random_prior(seed: int = 0) -> TumorPrior:
    rng = np.random.default_rng(seed)
    w = rng.uniform(LEAST, 1 - LEAST, SHAPE).astype(np.float32)
    return TumorPrior(w, 0.3, BRAIN, np.ones(SHAPE, np.float32))


def random_pi(seed: int = 1) -> np.ndarray:
    pi = np.zeros((*SHAPE, 5), np.float32)
    pi[..., :3] = np.random.default_rng(seed).dirichlet(np.ones(3), SHAPE)
    return pi


def test_columns_are_the_terms_of_section_2_3_2_and_sum_to_one():
    before, tumor = random_pi(), random_prior()
    pi = tumor.apply(before.copy())
    np.testing.assert_allclose(pi.sum(-1), 1, atol=1e-6)
    in_brain = before[..., BRAIN].sum(-1)
    np.testing.assert_allclose(pi[..., -2], in_brain * tumor.w * 0.7, rtol=1e-4)
    np.testing.assert_allclose(pi[..., -1], in_brain * tumor.w * 0.3, rtol=1e-4)
    np.testing.assert_array_equal(pi[..., 1], before[..., 1])  # not of the brain


def test_one_prior_takes_the_place_of_another():
    first, second = random_prior(0), random_prior(5)
    straight = second.apply(random_pi())
    np.testing.assert_allclose(second.apply(first.apply(random_pi()), first), straight, rtol=2e-4, atol=1e-7)


def test_marginal_densities_give_the_same_likelihood():
    tumor, pi = random_prior(), random_pi()
    L = np.random.default_rng(2).uniform(0.1, 3, (*SHAPE, 5)).astype(np.float32)
    expected = (tumor.apply(pi.copy()) * L).sum(-1)
    classes = tumor.marginalize(L.copy())
    assert classes.shape == (*SHAPE, 3)
    np.testing.assert_allclose((pi[..., :3] * classes).sum(-1), expected, rtol=1e-5)


def test_posterior_is_bayes_rule():
    pi = random_prior().apply(random_pi())
    L = np.random.default_rng(3).uniform(0.1, 3, pi.shape).astype(np.float32)
    joint = pi.astype(float) * L
    np.testing.assert_allclose(find_posterior(pi, L), joint[..., 3:].sum(-1) / joint.sum(-1), rtol=1e-5)


def test_prior_rises_in_a_region_and_falls_on_single_voxels():
    shape = (40, 40, 40)
    L = np.ones((*shape, 3), np.float32)
    L[..., 1:] = 0.01
    L[8:24, 8:24, 8:24, 1:] = 30.0  # a region that looks like tumor
    L[34, 34, 34, 1:] = 30.0  # a voxel that does
    pi = np.zeros((*shape, 3), np.float32)
    pi[..., 0] = 1
    tumor = TumorPrior(np.full(shape, 0.1, np.float32), 0.5, np.array([0]), np.ones(shape, np.float32))
    pi, use = tumor.apply(pi), np.ones(shape, np.uint8)
    for _ in range(5):
        tumor, before = tumor.follow(pi, L, use, 2.5), tumor
        tumor.apply(pi, before)
    assert tumor.w[16, 16, 16] > 0.95
    assert tumor.w[34, 34, 34] < 0.02
    half = replace(tumor, factor=np.full(shape, 0.5, np.float32)).follow(pi, L, use, 2.5)
    assert half.w[16, 16, 16] == pytest.approx(0.5, abs=0.03)


def test_interpolation_keeps_places():
    x = np.arange(10, dtype=np.float32)[:, None, None] * np.ones((1, 4, 4), np.float32) / 10
    tumor = TumorPrior(x, 0.5, BRAIN, 1 - x)
    fine = tumor.resample((19, 7, 7), 0.5)
    np.testing.assert_allclose(fine.w[:, 3, 3], np.arange(19) / 20, atol=1e-6)
    np.testing.assert_allclose(fine.factor, 1 - fine.w, atol=1e-6)
    assert tumor.resample((10, 4, 4), 1.0) is tumor


@pytest.mark.slow
def test_a_bias_field_does_not_swallow_a_large_tumor():
    """Bright in FLAIR over a third of the head: with a flat prior and free fields, the field takes it."""
    size = small_head.SIZE
    case = small_head.case()
    points = np.stack(np.indices((size,) * 3), -1)
    inside = (small_head.radius(points) < 15) & (points[..., 0] > 26)
    rng = np.random.default_rng(1)
    D = case.D.copy()
    mean = np.array(small_head.MEANS["edema"]) - [0, 0.2]
    D[:, inside] = (mean + 0.12 * rng.standard_normal((inside.sum(), 2))).T
    case = replace(case, D=D.astype(np.float32))
    config = GemConfig(outer_iterations=3, em_iterations=40, deformation_steps=0)
    taken = {}
    for name, changes in {
        "default": {},
        "paper": {"locality": 0.0, "bending": 0.0, "start": "paper"},
    }.items():
        settings = config.model_copy(update=changes)
        fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, settings)
        bias = field(fit.theta.C, case.grid.shape)[1]
        outside = (small_head.radius(points) < 15) & ~inside
        taken[name] = float(bias[inside].mean() - bias[outside].mean())
    assert abs(taken["default"]) < 0.1
    assert taken["paper"] > abs(taken["default"])


def test_bending_leaves_slow_fields_and_restrains_fast_ones():
    precision = build_bias_precision(np.array([4.0, 1.0]), 10.0)
    assert precision.shape == (2, 4, 4, 4)
    np.testing.assert_allclose(precision[1] / precision[0], 4)
    assert precision[1, 1, 0, 0] == pytest.approx(10.01)
    assert precision[1, 3, 3, 3] == pytest.approx(10 * 27**2 + 0.01)
    np.testing.assert_allclose(build_bias_precision(np.ones(1), 0.0), 0.01)  # the weak prior alone


def mirrored_case(bright: slice) -> Case:
    """A box of brain centered on x = 0, brighter by 0.4 in `bright` voxels along x."""
    shape = (41, 30, 30)
    D = np.full((1, *shape), 5.0, np.float32)
    D[0, bright, 8:22, 8:22] += 0.4
    affine = np.eye(4)
    affine[0, 3] = -20
    grid = Grid(shape, affine)
    return Case(
        D, (find_contrast("FLAIR"),), grid, "FLAIR", (Input("FLAIR", "FLAIR", grid, "RAS", np.eye(4)),), True
    )


def test_one_bright_side_keeps_its_prior_and_two_do_not():
    brain = np.ones((41, 30, 30))
    case = mirrored_case(slice(2, 16))
    one = weigh_asymmetry(case, case.grid, np.eye(4), brain, 0.1)
    assert one[8, 15, 15] > 0.9
    assert one[32, 15, 15] < 0.11
    both = case.D.copy()
    both[:, 25:39] = both[:, 2:16][:, ::-1]
    two = weigh_asymmetry(replace(case, D=both), case.grid, np.eye(4), brain, 0.1)
    assert two.max() < 0.25
    turned = weigh_asymmetry(replace(case, D=case.D[:, ::-1].copy()), case.grid, np.eye(4), brain, 0.1)
    np.testing.assert_allclose(turned, one[::-1], atol=1e-4)


def test_sides_are_not_compared_without_a_mirror_image_or_a_bright_contrast():
    brain = np.ones((41, 30, 30))
    case = mirrored_case(slice(2, 16))
    away = np.eye(4)
    away[0, 3] = 500  # the plane between the sides lies outside the image
    assert (weigh_asymmetry(case, case.grid, away, brain, 0.1) == 1).all()
    dark = replace(case, contrasts=(find_contrast("T1"),))
    assert weigh_asymmetry(dark, case.grid, np.eye(4), brain, 0.1) is None
    assert weigh_asymmetry(case, case.grid, np.eye(4), brain, 1.0) is None
