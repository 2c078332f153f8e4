"""Algorithm 2 on a small head: it never goes down, and it finds what was put there."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import small_head

from tumoar.inference import gem, gibbs, initialise
from tumoar.model import joint
from tumoar.model.atlas import pi
from tumoar.model.bias import field
from tumoar.model.gmm import Theta
from tumoar.numerics.voxels import WITH_DATA
from tumoar.vocabulary.config import GemConfig, Level
from tumoar.vocabulary.contrasts import find_contrast

LABELS = small_head.LABELS
QUICK = GemConfig(outer_iterations=4, em_iterations=20, deformation_steps=8)


@pytest.fixture(scope="module")
def shifted() -> tuple[small_head.Case, gem.Fit]:
    """A head moved by 2 mm against its atlas, with a bias field in the first contrast."""
    case = small_head.case(shift=(1.5, -1.0, 1.0), bias=0.15)
    return case, gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, QUICK)


def most_probable(case: small_head.Case, fit: gem.Fit) -> joint.Labels:
    v = joint.build_volume(case.D, np.ones(case.grid.shape, np.uint8))
    with_tumor = np.pad(pi(fit.placed, fit.nodes), ((0, 0),) * 3 + ((0, 2),))
    return gibbs.find_most_probable(fit, v, with_tumor, QUICK.u)


@pytest.mark.slow
def test_the_objective_never_falls_while_the_prior_of_tumor_is_flat():
    case = small_head.case(shift=(1.5, -1.0, 1.0), bias=0.15)
    flat = QUICK.model_copy(update={"locality": 0.0})
    fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, flat)
    assert (fit.w == np.float16(flat.w)).all()
    for level in range(2):
        values = [s.objective for s in fit.trace if s.level == level]
        assert len(values) > 3
        assert np.diff(values).min() > -2e-6  # single precision per voxel


def test_mesh_means_and_tumor_are_found(shifted):
    case, fit = shifted
    truth_l, truth_z, truth_y = small_head.truth((1.5, -1.0, 1.0))
    label_pi, labels = pi(fit.placed, fit.nodes), most_probable(case, fit)
    for name in ("white matter", "gray matter", "CSF"):
        k = LABELS.l(name)
        where = truth_z == 0
        assert small_head.dice((labels.l == k) & where, (truth_l == k) & where) > 0.93
    assert small_head.dice(labels.z == 1, truth_z == 1) > 0.9
    assert small_head.dice(labels.y == 1, truth_y == 1) > 0.85
    start = pi(fit.placed, fit.placed.reference)
    true_prior = np.take_along_axis(label_pi, truth_l[..., None].astype(int), -1)[..., 0]
    old_prior = np.take_along_axis(start, truth_l[..., None].astype(int), -1)[..., 0]
    assert np.log(true_prior + 1e-3).mean() > np.log(old_prior + 1e-3).mean() + 0.02  # the mesh followed
    for name in ("GWM", "GGM", "edema", "core"):
        q = fit.labels.component_slice(fit.labels.x_named(name)).start
        np.testing.assert_allclose(fit.theta.mu[q], small_head.MEANS[name], atol=0.12)


def test_bias_field_is_recovered(shifted):
    _, fit = shifted
    assert fit.theta.C[0, 1, 0, 0] == pytest.approx(0.15, abs=0.02)
    assert abs(fit.theta.C[1, 1, 0, 0]) < 0.02


def test_a_healthy_head_has_hardly_any_tumor():
    case = small_head.case(tumor=False)
    config = replace_levels(QUICK)
    fit = gem.fit(case, small_head.atlas(), np.eye(4), small_head.TUMOR_MM3, config)
    labels = most_probable(case, fit)
    assert labels.z.sum() < 0.01 * (small_head.truth()[0] > 0).sum()


def replace_levels(config: GemConfig) -> GemConfig:
    return config.model_copy(update={"levels": (Level(spacing=2, smoothing=2),), "outer_iterations": 2})


def test_skull_stripped_atlas_keeps_only_brain_and_background():
    stripped = gem.merge_nonbrain(small_head.atlas())
    outside = ~LABELS.in_brain
    outside[stripped.background] = False
    assert not stripped.alpha[:, outside].any()
    np.testing.assert_allclose(stripped.alpha.sum(1), 1, atol=1e-6)


def test_unknown_settings_are_errors():
    with pytest.raises(ValueError, match="burnin"):
        GemConfig(burnin=3)


def scene():
    case = small_head.case()
    placed = gem.place(small_head.atlas(), np.eye(4), case.grid)
    scene_, class_pi = gem._build_scene(
        case, 1, placed, placed.reference, small_head.TUMOR_MM3, GemConfig(), follows=False
    )
    tumor = gem._start_tumor(case, placed, np.eye(4), class_pi, 1, GemConfig(), None)
    return case, scene_, tumor.apply(class_pi)


def test_theta_starts_from_the_atlas_within_the_constraints():
    case, scene_, class_pi = scene()
    few = initialise.tie_core_components(LABELS)
    theta = initialise.initialize_theta(
        few, case.contrasts, scene_.volume, class_pi, scene_.groups, scene_.prior, learned=False
    )
    assert (scene_.prior.A @ theta.mu.ravel() <= scene_.prior.b + 1e-9).all()
    columns = joint.assign_columns(few)
    w = class_pi[..., columns[few.l("white matter")]].ravel().astype(float)
    mean = (case.D.reshape(2, -1) * w).sum(1) / w.sum()
    q = few.component_slice(few.x_named("GWM"))
    np.testing.assert_allclose(theta.mu[q].mean(0), mean, atol=0.05)
    background = few.component_slice(few.x_named("background"))
    steps = np.diff(theta.mu[background], axis=0)
    np.testing.assert_allclose(steps[0], steps[1])  # equal intervals
    assert (steps > 0).all()


def test_tumor_starts_at_the_distances_of_table_4_from_the_mean_of_the_image():
    case, scene_, class_pi = scene()
    few = initialise.tie_core_components(LABELS)
    free = replace(scene_.prior, A=np.zeros((0, 2 * few.Q)), b=np.zeros(0))
    theta = initialise.initialize_theta(
        few, case.contrasts, scene_.volume, class_pi, scene_.groups, free, learned=False
    )
    seen = case.D[:, scene_.volume.use == WITH_DATA].astype(float)
    m, s = seen.mean(1), seen.std(1)
    core, edema = (few.component_slice(x).start for x in (few.core, few.edema))
    np.testing.assert_allclose(theta.mu[core], m + np.array([1.5, 1.0]) * s, rtol=1e-5)
    np.testing.assert_allclose(theta.mu[edema], m + np.array([0.2, 1.0]) * s, rtol=1e-5)


def test_the_chiasm_starts_like_white_matter_unless_the_start_is_the_paper_s():
    case, scene_, class_pi = scene()
    few = initialise.tie_core_components(LABELS)
    start = functools.partial(
        initialise.initialize_theta,
        few, case.contrasts, scene_.volume, class_pi, scene_.groups, scene_.prior,
    )  # fmt: skip
    chiasm, white = (few.component_slice(few.x_named(name)).start for name in ("chiasm", "GWM"))
    apart = [np.abs(t.Sigma[chiasm] - t.Sigma[white]).max() for t in (start(learned=False), start())]
    assert apart[0] > apart[1]


def test_releasing_the_core_changes_no_likelihood():
    case, scene_, class_pi = scene()
    few = initialise.tie_core_components(LABELS)
    assert few.Q == LABELS.Q - 2
    theta = initialise.initialize_theta(
        few, case.contrasts, scene_.volume, class_pi, scene_.groups, scene_.prior
    )
    full = initialise.release_core_components(theta, few, LABELS)
    assert full.Q == LABELS.Q
    np.testing.assert_allclose(full.gamma[LABELS.component_slice(LABELS.core)], 1 / 3)
    columns = joint.assign_columns(LABELS)
    groups = joint.compile_groups(LABELS, columns, tumor_columns=True)
    before = joint.expect(scene_.volume, class_pi, scene_.groups, theta)[1]
    assert joint.expect(scene_.volume, class_pi, groups, full)[1] == pytest.approx(before, rel=1e-6)


SPACING = (1.0, 1.0, 1.0)


def start(
    before: joint.Labels,
    bright: np.ndarray | None = None,
    solid: np.ndarray | None = None,
    opened: bool = False,
):
    """Initial labels; by default everything is bright, and the atlas expects solid brain nowhere."""
    shape = before.z.shape
    bright = np.ones(shape, bool) if bright is None else bright
    solid = np.zeros(shape, bool) if solid is None else solid
    rng = np.random.default_rng(0)
    return initialise.initialize_labels(before, bright, solid, SPACING, rng, opened=opened)


def test_tumor_inside_a_rim_of_core_becomes_core():
    r = np.sqrt(((np.indices((48, 48, 48)) - 23.5) ** 2).sum(0))
    z = (r < 18).astype(np.uint8)
    y = ((r > 8) & (r < 11)).astype(np.uint8)
    y[:, :25, 23:26] = 0  # the rim has a gap
    before = joint.Labels(np.ones_like(z), z, y)
    after = start(before)
    assert (after.y[r < 8] == 1).all()
    assert (after.y[y == 1] == 1).all()
    assert after.y[r > 12].sum() == 0


def test_a_rim_that_surgery_has_opened_is_filled_in_planes():
    where = np.indices((48, 48, 48)) - 23.5
    r = np.sqrt((where**2).sum(0))
    z = (r < 16).astype(np.uint8)
    corridor = (np.hypot(where[0], where[1]) < 9) & (where[2] > 0)
    before = joint.Labels(np.ones_like(z), z, ((r > 10) & (r < 13) & ~corridor).astype(np.uint8))
    inside = (r < 10) & (where[2] < 5)
    assert start(before, opened=True).y[inside].all()
    assert start(before).y[inside].mean() < 0.5


def test_necrosis_taken_for_normal_tissue_inside_a_rim_becomes_core_and_expected_fluid_does_not():
    r = np.sqrt(((np.indices((48, 48, 48)) - 23.5) ** 2).sum(0))
    z = ((r > 14) & (r < 19)).astype(np.uint8)
    y = ((r > 14) & (r < 17)).astype(np.uint8)
    solid = np.arange(48) < 24 + np.zeros((48, 48, 1))
    after = start(joint.Labels(np.ones_like(z), z, y), solid=solid)
    inside = r < 14
    np.testing.assert_array_equal(after.y[inside] == 1, solid[inside])
    np.testing.assert_array_equal(after.z[inside] == 1, solid[inside])
    assert (after.z[z == 1] == 1).all()
    assert after.z[r > 19].sum() == 0
    assert (after.y <= after.z).all()


def test_normal_brain_between_specks_of_core_is_not_filled():
    y = np.zeros((48, 48, 48), np.uint8)
    y[16:18, 16:32, 16:32], y[26:28, 16:32, 16:32] = 1, 1
    z = y.copy()
    z[30:40, 8:40, 8:40] = 1
    after = start(joint.Labels(np.ones_like(z), z, y), solid=np.ones(z.shape, bool))
    assert (after.z == z).all()
    assert after.y[18:26].sum() == 0


def test_the_atlas_expects_solid_brain_where_it_expects_neither_fluid_nor_what_is_outside():
    pi = np.eye(LABELS.K, dtype=np.float32)[None, None]
    expected = [s.in_brain and s.gmm != "CSF" for s in LABELS.structures]
    np.testing.assert_array_equal(initialise.find_solid(LABELS, pi)[0, 0], expected)


def test_a_fifth_of_the_edema_becomes_core():
    z = np.zeros((30, 30, 30), np.uint8)
    z[4:9, 4:9, 4:9] = 1
    y = np.zeros_like(z)
    y[4, 4:9, 4:6] = 1  # at the edge: it encloses nothing
    before = joint.Labels(np.ones_like(z), z, y)
    after = start(before)
    assert after.y.sum() == 10 + 115 // 5
    assert (after.y[y == 1] == 1).all()
    assert (after.z == z).all()
    assert (after.y <= after.z).all()


def test_empty_tumor_is_a_legitimate_start():
    zero = np.zeros((3, 3, 3), np.uint8)
    empty = joint.Labels(zero, zero, zero)
    assert not start(empty).y.any()


def test_core_that_does_not_enhance_starts_as_edema():
    r = np.sqrt(((np.indices((48, 48, 48)) - 23.5) ** 2).sum(0))
    z = (r < 18).astype(np.uint8)
    y = ((r > 8) & (r < 18)).astype(np.uint8)  # the rim, and all of the edema around it
    bright = (r > 8) & (r < 11)
    after = start(joint.Labels(np.ones_like(z), z, y), bright)
    assert (after.z == z).all()
    np.testing.assert_array_equal(after.y == 1, r < 11)


def test_enhancing_is_brighter_than_every_normal_mean_without_the_bias_field():
    shape = (12, 10, 8)
    contrasts = [find_contrast("FLAIR"), find_contrast("T1c")]
    rng = np.random.default_rng(0)
    mu = np.full((LABELS.Q, 2), 4.0)
    mu[LABELS.component_slice(LABELS.x_named("GWM")), 1] = 6.0
    mu[LABELS.component_slice(LABELS.x_named("GGM")), 1] = 5.5
    C = rng.normal(0, 0.3, (2, 4, 4, 4))
    C[:, 0, 0, 0] = 0
    theta = Theta(np.ones(LABELS.Q), mu, np.tile(np.eye(2), (LABELS.Q, 1, 1)), C)
    true = rng.uniform(5, 7, (2, *shape))
    D = true + field(C, shape)
    D[1, 0, 0, 0] = np.nan
    expected = true[1] >= 6.0 + np.log(1.1)
    expected[0, 0, 0] = False
    np.testing.assert_array_equal(initialise.find_enhancing(LABELS, contrasts, D, theta), expected)
    assert initialise.find_enhancing(LABELS, contrasts[:1], D[:1], theta).all()  # FLAIR tells nothing of core


def test_voxels_without_data_take_part_only_in_the_brain():
    D = np.zeros((1, 40, 5, 5), np.float32)
    D[0, [8, 30], 2, 2] = np.nan
    background = np.ones((40, 5, 5))
    background[5:12] = 0
    use = initialise.select_voxels(D, background, 1 - background, (1.0, 1.0, 1.0))
    assert use[8, 2, 2] == 2
    assert use[30, 2, 2] == 0
    assert use[21, 0, 0] == 1  # ten millimeters of margin
    assert use[22, 0, 0] == 0
