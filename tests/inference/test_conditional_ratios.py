"""Every conditional of Algorithm 1 against the joint: p(x'|rest) / p(x|rest) is the ratio of the joint.

Grosse & Duvenaud 2014. Densities are compared as ratios; what a kernel draws without showing its
probabilities, the labels of a voxel and its component, must be the joint inverted at the kernel's own random
number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference_voxels as reference
import tiny_model as tiny
from reference_joint import Everything, log_joint
from tiny_chain import LABELS, TinyModel

from tumoar.model import joint
from tumoar.model.conditionals import C_given, Sigma_given, gamma_given, mu_given, update_theta
from tumoar.numerics.random import stream_key, uniform

MODEL = TinyModel((2, 2, 2), (tiny.crbm(1, -1.9), tiny.crbm(4, -1.0, 0.8, filters=2, taps=2)), tiny.prior())
STATES = 125
"""For each of eight conditionals: 1,000 in all, and as many with a power on the likelihood."""
TAUS = [1.0, 0.4]


def everything(rng: np.random.Generator) -> Everything:
    """All from the prior, but the hidden units, which are tossed."""
    theta, labels = MODEL.draw_theta(rng), MODEL.draw_labels(rng)
    D, t = MODEL.simulate(theta, labels, rng)
    h = []
    for crbm in MODEL.shapes:
        reached = tuple(n + crbm.reach for n in MODEL.shape)
        h.append(rng.random((len(crbm.b), *reached)) < 0.5)
    return Everything(D.astype(float), t.argmax(0), labels.l, labels.z, labels.y, h[0], h[1], theta)


def log_p(e: Everything, tau: float = 1.0) -> float:
    return log_joint(e, LABELS, MODEL.pi, MODEL.prior, MODEL.shapes, tau)


def moments_of(e: Everything):
    t = np.arange(LABELS.Q)[:, None, None, None] == e.q
    return reference.moments(e.D, t.astype(float))


def free(C: np.ndarray) -> np.ndarray:
    return C.reshape(len(C), -1)[MODEL.prior.has_bias, 1:].ravel()


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("name", ["gamma", "mu", "Sigma", "C"])
def test_ratios_of_theta(name, tau):
    rng = np.random.default_rng(1)
    for _ in range(STATES):
        e = everything(rng)
        moments, prior = moments_of(e), MODEL.prior
        part_of_each = moments.scaled(tau)
        other = MODEL.draw_theta(rng)
        conditional, part = {
            "gamma": (gamma_given(moments, prior), lambda x: x),
            "mu": (mu_given(e.theta, part_of_each, prior), np.ravel),
            "Sigma": (Sigma_given(e.theta, part_of_each, prior), lambda x: x),
            "C": (C_given(e.theta, part_of_each, prior), free),
        }[name]
        old, new = getattr(e.theta, name), getattr(other, name)
        ratio = conditional.log_prob(part(new)) - conditional.log_prob(part(old))
        expected = log_p(replace(e, theta=replace(e.theta, **{name: new})), tau) - log_p(e, tau)
        assert ratio == pytest.approx(expected, rel=1e-8, abs=1e-7)


@pytest.mark.parametrize("tau", TAUS)
def test_a_sweep_over_theta_takes_each_conditional_in_turn(tau):
    """Each is the joint along its part, given what was picked before."""
    rng = np.random.default_rng(6)
    for _ in range(10):
        e = everything(rng)
        seen: list = []
        new = update_theta(
            e.theta, moments_of(e), MODEL.prior, lambda c, to=seen: to.append(c) or c.sample(rng), tau
        )
        given = e.theta
        for name, conditional in zip(("gamma", "mu", "Sigma", "C"), seen, strict=True):
            given = replace(given, **{name: getattr(new, name)})
            other = replace(given, **{name: getattr(MODEL.draw_theta(rng), name)})
            part = {"mu": np.ravel, "C": free}.get(name, lambda x: x)
            ratio = conditional.log_prob(part(getattr(given, name)))
            ratio -= conditional.log_prob(part(getattr(other, name)))
            expected = log_p(replace(e, theta=given), tau) - log_p(replace(e, theta=other), tau)
            assert ratio == pytest.approx(expected, rel=1e-8, abs=1e-7)


def test_means_beyond_a_constraint_are_impossible_in_both():
    rng = np.random.default_rng(2)
    for row in range(len(MODEL.prior.b)):
        e = everything(rng)
        mu = e.theta.mu + MODEL.prior.A[row].reshape(e.theta.mu.shape) * 50
        assert log_p(replace(e, theta=replace(e.theta, mu=mu))) == -np.inf
        assert mu_given(e.theta, moments_of(e), MODEL.prior).log_prob(mu.ravel()) == -np.inf


@pytest.mark.parametrize("which", [0, 1])
def test_ratios_of_hidden_units(which):
    rng = np.random.default_rng(3)
    crbm, name, of = MODEL.shapes[which], ("h_z", "h_y")[which], ("z", "y")[which]
    for _ in range(STATES):
        e = everything(rng)
        log_odds = crbm.hidden_input(np.pad(getattr(e, of), crbm.reach))
        unit = tuple(rng.integers(0, log_odds.shape))
        on, off = getattr(e, name).copy(), getattr(e, name).copy()
        on[unit], off[unit] = True, False
        ratio = log_p(replace(e, **{name: on})) - log_p(replace(e, **{name: off}))
        assert log_odds[unit] == pytest.approx(ratio, abs=1e-6)


def test_hidden_units_are_drawn_with_these_probabilities():
    """The field is linear in the units: its mean over draws is that of their probabilities."""
    rng = np.random.default_rng(4)
    region, draws = np.ones(MODEL.shape, bool), 500
    for crbm in MODEL.shapes:
        v = rng.random(MODEL.shape) < 0.5
        inner = (slice(crbm.reach, -crbm.reach),) * 3
        p = crbm.hidden_probability(np.pad(v, crbm.reach))
        fields = np.array([crbm.field(v, region, key) for key in range(draws)])
        error = fields.std(0) / np.sqrt(draws)
        assert (np.abs(fields.mean(0) - crbm.visible_input(p)[inner]) < 4.5 * error).all()


def of_voxel(e: Everything, i: tuple[int, ...], tau: float) -> dict[tuple[int, int, int, int], float]:
    """p(l, z, y, t of voxel i | all else), by putting every value into the joint."""
    table = {}
    for l, z, y, q in np.ndindex(LABELS.K, 2, 2, LABELS.Q):
        if LABELS.is_allowed(l, z, y) and LABELS.x_of_component[q] == LABELS.x(l, z, y):
            changed = {name: getattr(e, name).copy() for name in ("l", "z", "y", "q")}
            for name, value in (("l", l), ("z", z), ("y", y), ("q", q)):
                changed[name][i] = value
            table[l, z, y, q] = log_p(replace(e, **changed), tau)
    top = max(table.values())
    weight = {key: np.exp(value - top) for key, value in table.items()}
    return {key: value / sum(weight.values()) for key, value in weight.items()}


def inverted(p: np.ndarray, u: float) -> tuple[int, bool]:
    """Where the cumulative sum of p passes u, and whether u is too near a step for float32 to tell."""
    cumulative = np.cumsum(p) / p.sum()
    at = min(int((u >= cumulative).sum()), len(p) - 1)
    return at, bool(np.abs(cumulative[:-1] - u).min(initial=1) < 1e-5)


@pytest.mark.parametrize("tau", TAUS)
def test_labels_and_components_are_drawn_from_the_joint(tau):
    """(l, z, y) with t summed out, then t, is what drawing t and z, y first and l then amounts to."""
    rng = np.random.default_rng(5)
    checked = near = 0
    for _ in range(4):
        e = everything(rng)
        fields = tuple(
            crbm.visible_input(h)[(slice(crbm.reach, -crbm.reach),) * 3].astype(np.float32)
            for crbm, h in zip(MODEL.shapes, (e.h_z, e.h_y))
        )
        v = joint.build_volume(e.D.astype(np.float32), MODEL.in_use)
        before = joint.Labels(e.l.copy(), e.z.copy(), e.y.copy())
        tables = {i: of_voxel(e, i, tau) for i in np.ndindex(MODEL.shape)}
        for number in range(20):
            drawn, moments = joint.draw(
                v,
                joint.pack_prior(v, MODEL.pi),
                joint.compile_groups(LABELS),
                e.theta,
                fields,
                before,
                (3, number),
                tau=tau,
            )
            count = np.zeros(LABELS.Q)
            for (x, y, z), table in tables.items():
                k0, k1 = stream_key(np.uint64(3), np.int64(number), 7, x * MODEL.shape[1] + y)
                by_q = np.array([sum(p for key, p in table.items() if key[3] == q) for q in range(LABELS.Q)])
                q, unclear = inverted(by_q, uniform(k0, k1, 2 * z))
                states = [key for key in table if key[3] == q]
                at, unclear_l = inverted(np.array([table[s] for s in states]), uniform(k0, k1, 2 * z + 1))
                count[q] += 1
                near += unclear or unclear_l
                found = (drawn.l[x, y, z], drawn.z[x, y, z], drawn.y[x, y, z])
                assert found == states[at][:3] or unclear or unclear_l
                checked += 1
            assert (moments.n == count).all() or near
    assert checked == 4 * 20 * 8
    assert near < 5
