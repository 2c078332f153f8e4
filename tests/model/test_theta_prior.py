"""The prior in numbers: section 3.3 and Table 3, row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tumoar.model.theta_prior import build_mean_constraints, build_theta_prior, expect_voxels
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels


def contrasts(*names: str):
    return [find_contrast(n) for n in names]


def component(gmm: str) -> int:
    labels = default_labels()
    return labels.component_slice(labels.x_named(gmm)).start


@pytest.mark.parametrize("white", [1, 2])
def test_table_3_bounds_every_gaussian_of_white_matter_and_our_own_rows_come_on_top(white):
    labels = default_labels()
    gmms = tuple(replace(g, components=white) if g.name == "GWM" else g for g in labels.gmms)
    labels = replace(labels, gmms=gmms)
    A, b = build_mean_constraints(labels, contrasts("T1c", "FLAIR", "T2", "CT"))
    assert A.shape == (6 * (white + 1) + 3 * white + 6, labels.Q * 4)
    assert (np.abs(A).sum(1) == 2).all()
    assert (A.sum(1) == 0).all()
    table = np.repeat(
        -np.log([1.15, 1.0, 1.10, 1.05, 1.05, 1.0]), white + 1
    )  # against white, and gray matter
    ours = [*np.repeat(np.log([1.4, 1.4, 1.05]), white), 0, 0, 0, 0, -np.log(1.05), -np.log(1.10)]
    np.testing.assert_allclose(np.sort(b), np.sort([*table, *ours]), atol=1e-9)


@pytest.mark.parametrize(
    ("gmm", "contrast", "factor", "above"),
    [
        ("edema", "FLAIR", 1.15, True),
        ("core", "FLAIR", 1.0, True),
        ("core", "T1c", 1.10, True),
        ("unspecified", "FLAIR", 1 / 1.05, False),
        ("unspecified", "T1c", 1 / 1.05, False),
        ("chiasm", "FLAIR", 1.0, False),
        ("chiasm", "T1c", 1 / 1.4, True),  # ours
        ("deep gray", "FLAIR", 1.0, False),  # ours
        ("edema", "T1c", 1.05, False),  # ours
    ],
)
def test_each_line_of_table_3_is_met_exactly_at_its_bound(gmm, contrast, factor, above):
    A, b = build_mean_constraints(default_labels(), contrasts("T1c", "FLAIR"))
    n = ("T1c", "FLAIR").index(contrast)
    mu = np.zeros((default_labels().Q, 2))
    mu[[component("edema"), component("core")]] = 5
    mu[[component("unspecified"), component("chiasm")]] = -5
    mu[default_labels().component_slice(default_labels().x_named("deep gray"))] = -5
    mu[component("chiasm"), 0], mu[component("edema"), 0] = 5, -5
    mu[component("GWM"), n], mu[component("GGM"), n] = (0.4, 0.3) if gmm == "chiasm" and above else (0.3, 0.4)
    bound = (0.4 if above or gmm == "deep gray" else 0.3) + np.log(factor)  # GGM alone, the brighter one
    inward = 1e-6 if above else -1e-6
    mu[component(gmm), n] = bound + inward
    assert (A @ mu.ravel() <= b).all()
    mu[component(gmm), n] = bound - inward
    assert (A @ mu.ravel() <= b).sum() == len(b) - 1


def test_only_the_first_component_of_core_is_constrained():
    A, _ = build_mean_constraints(default_labels(), contrasts("T1c", "FLAIR"))
    used = np.abs(A).sum(0).reshape(-1, 2).sum(1)
    first = component("core")
    assert used[first] > 0
    assert not used[first + 1 : first + 3].any()


def test_strengths_follow_section_3_3():
    labels = default_labels()
    sums = np.arange(1.0, labels.X + 1) * 1000
    expected = expect_voxels(labels, sums, {"core": 30_000.0, "edema": 60_000.0}, voxel_mm3=8.0)
    assert expected[labels.core] == 30_000 / 8
    assert expected[labels.x_named("GWM")] == sums[labels.x_named("GWM")]
    prior = build_theta_prior(
        labels, contrasts("T1c", "CT"), np.zeros(2), np.array([4.0, 9.0]), 2e6, expected
    )
    assert prior.alpha0 == 1 + 1e-4 * 2e6
    q = component("core")
    assert prior.nu0[q] == pytest.approx(2 + 0.1 * (30_000 / 8) / 3)
    np.testing.assert_allclose(prior.S0[q], prior.nu0[q] / labels.X**2 * np.diag([4.0, 9.0]))
    q = component("unspecified")
    np.testing.assert_allclose(prior.S0[q], prior.nu0[q] * np.diag([4.0, 9.0]))
    assert list(prior.has_bias) == [True, False]


def test_expected_voxels_need_not_be_whole():
    labels = default_labels()
    expected = expect_voxels(labels, np.ones(labels.X), {"core": 10.0, "edema": 5.0}, 4.0)
    assert (expected[labels.core], expected[labels.edema]) == (2.5, 1.25)
