"""A resection cavity in label table, atlas and sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import small_head
import small_surgery
from small_run import CONFIG, MODEL, Memory

from tumoar.app import pipeline
from tumoar.app.pipeline import segment
from tumoar.inference import gibbs, initialise
from tumoar.inference.fixed import apply_fixed
from tumoar.inference.initialise import find_enhancing, open_cavity
from tumoar.model import cavity as model_cavity
from tumoar.model import joint
from tumoar.model.cavity import RARE, open_atlas
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import build_mean_constraints, build_theta_prior
from tumoar.numerics.voxels import WITH_DATA
from tumoar.result import cavity as result_cavity
from tumoar.result.cavity import find_fluid, review_cavity
from tumoar.result.checks import review
from tumoar.result.native import deliver
from tumoar.result.scores import compare_organs
from tumoar.result.state import read_state, write_state
from tumoar.vocabulary.contrasts import find_contrast, fluid_is_identifiable
from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.labels import add_cavity, default_labels

LABELS = default_labels()
OPENED = add_cavity(LABELS)


def test_the_table_gets_one_state_and_one_mixture():
    cavity = OPENED.cavity
    assert LABELS.cavity is None
    assert (OPENED.K, OPENED.X, len(OPENED.states)) == (LABELS.K + 1, LABELS.X + 1, len(LABELS.states) + 1)
    assert set(OPENED.states) - set(LABELS.states) == {(cavity, 1, 1)}
    assert OPENED.gmms[OPENED.x(cavity, 1, 1)].name == "cavity"
    with pytest.raises(ValueError, match="forbidden"):
        OPENED.x(cavity, 1, 0)
    for state in LABELS.states:
        assert OPENED.x(*state) == LABELS.x(*state)
    assert (OPENED.G[-1], add_cavity(LABELS, blood=False).G[-1]) == (3, 2)
    taken = replace(LABELS, tumor=(replace(LABELS.tumor[0], index=20), LABELS.tumor[1]))
    assert add_cavity(taken).structures[-1].index == 255
    with pytest.raises(ModelFileError, match="duplicate"):
        add_cavity(OPENED)


def test_what_is_delivered():
    organ = OPENED.organ
    assert organ("Cavity").structures == ("resection cavity",)
    assert (organ("GTV_residual").tumor, organ("GTV_residual").structures) == (("core",), ())
    assert (organ("GTV").tumor, organ("GTV").structures) == (("core",), ("resection cavity",))
    assert "resection cavity" in organ("Brain").structures
    assert OPENED.is_anatomy(organ("Brain"))
    assert not any(OPENED.is_anatomy(organ(name)) for name in ("Cavity", "GTV", "GTV_residual", "Edema"))


def test_scores_of_a_cavity():
    index, core = OPENED.structures[OPENED.cavity].index, OPENED.tumor[0].index
    truth = np.zeros((4, 4, 4), np.uint8)
    truth[0], truth[1], truth[2:] = index, core, OPENED.indices[OPENED.l("white matter")]
    found = truth.copy()
    found[0, 0] = core
    scores = compare_organs(OPENED, found, truth, (1, 1, 1))
    assert scores["GTV"].dice == 1
    assert scores["Cavity"].dice == pytest.approx(2 * 12 / 28)
    assert scores["Brain"].dice == 1


def test_the_atlas_expects_no_cavity_in_fluid_or_outside_the_brain():
    before = small_head.atlas()
    after = open_atlas(before)
    share = after.alpha[:, OPENED.cavity]
    assert np.allclose(after.alpha.sum(1), 1, atol=1e-6)
    fluid = before.alpha[:, LABELS.l("CSF")]
    assert share.max() == pytest.approx(RARE / (1 + RARE), rel=0.02)
    assert share[(fluid > 0.98) | (before.alpha[:, 0] > 0.98)].max() < RARE / 20
    ours, theirs = (a[:, np.flatnonzero(LABELS.trained)] for a in (after.alpha, before.alpha))
    assert np.allclose(ours / ours.sum(1, keepdims=True), theirs / theirs.sum(1, keepdims=True), atol=1e-5)


def test_fluid_is_bound_to_the_side_of_csf_and_blood_is_bright_in_t1():
    contrasts = [find_contrast(n) for n in ("T1", "T1c", "T2", "FLAIR")]
    mu = np.zeros((OPENED.Q, 4))
    mu[OPENED.component_slice(OPENED.x_named("CSF"))] = [-1, -1, 1, -1]
    q = OPENED.component_slice(OPENED.x_named("cavity"))
    A, b = build_mean_constraints(OPENED, contrasts)
    own = np.abs(A.reshape(-1, OPENED.Q, 4)[:, q]).sum((1, 2)) > 0
    mu[q] = [[-1, -1, 1, -1], [-2, -2, -2, -2], [0.5, 0.5, 0, 0]]
    assert (A @ mu.ravel() <= b)[own].all()
    for n, wrong in enumerate((0.5, 0.5, -0.5, 0.5)):
        broken = mu.copy()
        broken[q.start, n] = wrong
        assert not (A @ broken.ravel() <= b)[own].all()
    for component, n, wrong in ((1, 0, -0.5), (1, 1, -0.5), (1, 2, 1.0), (2, 0, -0.5)):
        broken = mu.copy()
        broken[q.start + component, n] = wrong
        assert not (A @ broken.ravel() <= b)[own].all()


def test_core_is_darker_than_blood_in_t1_but_only_after_surgery():
    contrasts = [find_contrast(n) for n in ("T1", "T1c", "T2", "FLAIR")]
    (before, _), (after, b) = (build_mean_constraints(table, contrasts) for table in (LABELS, OPENED))
    core = OPENED.component_slice(OPENED.core)
    for q in range(core.start, core.stop):
        mu = np.zeros((OPENED.Q, 4))
        mu[q, 0] = 0.1  # of T1, above white matter
        broken = after @ mu.ravel() > b
        rows = after.reshape(-1, OPENED.Q, 4)[broken & (after.reshape(-1, OPENED.Q, 4)[:, q, 0] == 1)]
        assert len(rows) == 1
    cavity = OPENED.component_slice(OPENED.X - 1)
    of_cavity = np.abs(after.reshape(-1, OPENED.Q, 4)[:, cavity]).sum((1, 2)) > 0
    assert len(before) == len(after) - of_cavity.sum() - (core.stop - core.start)


def test_draws_have_the_frequencies_of_the_model():
    """All voxels alike: the state (cavity, 1, 1) competes with those of core under the same fields."""
    shape, rng = (24, 24, 24), np.random.default_rng(0)
    pi = np.zeros((*shape, OPENED.K), np.float32)
    weights = {"white matter": 0.5, "CSF": 0.3, "background": 0.1, "resection cavity": 0.1}
    for name, weight in weights.items():
        pi[..., OPENED.l(name)] = weight
    D = np.zeros((1, *shape), np.float32)
    volume = joint.build_volume(D, np.full(shape, WITH_DATA, np.uint8))
    Q = OPENED.Q
    theta = Theta(
        (1 / OPENED.G)[OPENED.x_of_component],
        rng.normal(0, 1, (Q, 1)),
        np.ones((Q, 1, 1)),
        np.zeros((1, 4, 4, 4)),
    )
    fields = tuple(np.full(shape, value, np.float32) for value in (0.4, -0.3))
    first = joint.Labels(*(np.zeros(shape, np.uint8) for _ in range(3)))
    groups = joint.compile_groups(OPENED)
    drawn, _ = joint.draw(volume, joint.pack_prior(volume, pi), groups, theta, fields, first, (1, 1))
    density = np.zeros(OPENED.X)
    np.add.at(density, OPENED.x_of_component, theta.gamma * np.exp(-0.5 * theta.mu[:, 0] ** 2))
    expected = {}
    for l, z, y in OPENED.states:
        prior = float(pi[0, 0, 0, l]) * np.exp(0.4 * z - 0.3 * y)
        expected[l, z, y] = prior * density[OPENED.x(l, z, y)]
    total = sum(expected.values())
    n = drawn.l.size
    for (l, z, y), weight in expected.items():
        p = weight / total
        found = int(((drawn.l == l) & (drawn.z == z) & (drawn.y == y)).sum())
        assert abs(found - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9
    allowed = {(l, z, y) for l, z, y in OPENED.states}
    assert set(zip(*(v.ravel().tolist() for v in (drawn.l, drawn.z, drawn.y)))) <= allowed


def test_a_cavity_gives_way_to_what_the_user_has_fixed():
    shape, cavity = (4, 1, 1), OPENED.cavity
    ones = np.ones(shape, np.uint8)
    first = joint.Labels(np.full(shape, cavity, np.uint8), ones, ones)
    z = np.array([0, -1, 1, -1], np.int8).reshape(shape)
    y = np.array([-1, 0, 1, -1], np.int8).reshape(shape)
    found = apply_fixed(first, z, y, OPENED)
    assert (found.l == cavity).ravel().tolist() == [False, False, True, True]
    allowed = set(OPENED.states)
    assert set(zip(*(v.ravel().tolist() for v in (found.l, found.z, found.y)))) <= allowed


@pytest.fixture(scope="module")
def opened():
    D, cavity, core = small_surgery.remove_core()
    case = small_surgery.case_of(D)
    config = CONFIG.model_copy(update={"postop": True, "least_tumor": 0.0})
    return segment(case, MODEL, config, seed=0, keeper=Memory(), keeps_samples=True), cavity, core


def test_the_stored_state_has_the_odds_of_the_chain(opened, tmp_path):
    found, *_ = opened
    write_state(tmp_path / "state.npz", found)
    state = read_state(tmp_path / "state.npz")
    box = tuple(slice(f, f + n) for f, n in zip(state.first, state.use.shape))
    given = (found.fit.labels, found.case.contrasts, found.case.D, found.fit.theta)
    kinds = model_cavity.find_kinds(model_cavity.find_fillings(*given))[box]
    assert np.array_equal(state.fillings, kinds)
    assert len(np.unique(kinds)) > 1


def test_cavity_and_residual_of_the_small_head(opened):
    found, cavity, core = opened
    ours = found.votes.l == found.table.cavity
    assert small_head.dice(ours | found.closed, cavity) > 0.9
    residual = (found.votes.y == 1) & ~ours & ~found.closed
    assert small_head.dice(residual, core) > 0.7


@pytest.mark.slow
def test_blood_belongs_to_the_cavity():
    D, cavity, core = small_surgery.remove_core()
    D, blood = small_surgery.leave_blood(D, cavity)
    config = CONFIG.model_copy(update={"postop": True, "least_tumor": 0.0})
    found = segment(small_surgery.case_of(D), MODEL, config, seed=0, keeper=Memory())
    ours = found.votes.l == found.table.cavity
    assert ours[blood].mean() > 0.9
    assert small_head.dice(ours, cavity) > 0.9
    assert small_head.dice(found.mask("GTV_residual"), core) > 0.7


def test_air_and_blood_without_data_stay_where_they_are():
    """The prior of means has its maximum over each at its distance from white matter."""
    contrasts = [find_contrast(n) for n in ("T1", "T1c", "T2", "FLAIR")]
    relations = model_cavity.relate_cavity_means(OPENED, contrasts, 80.0)
    J, j = relations.J.reshape(OPENED.Q, 4, -1), relations.j.reshape(OPENED.Q, 4)
    mu = np.zeros((OPENED.Q, 4))
    mu[OPENED.component_slice(OPENED.x_named("GWM"))] = white = np.array([6.2, 6.0, 5.0, 5.5])
    air = OPENED.component_slice(OPENED.x_named("cavity")).start + 1
    for q, offsets in ((air, [-2.5] * 4), (air + 1, [0.3, 0.3, 0, 0])):
        own = J[q].reshape(4, OPENED.Q, 4)
        rest = np.einsum("nqm,qm->n", own, mu)
        assert np.allclose(np.linalg.solve(own[:, q], j[q] - rest), white + offsets)


def test_blood_is_as_bright_in_t1_as_in_t1c():
    """The tie of both means is stronger than that of either to white matter."""
    contrasts = [find_contrast(n) for n in ("T1", "T1c")]
    J = model_cavity.relate_cavity_means(OPENED, contrasts, 80.0).J.reshape(OPENED.Q, 2, OPENED.Q, 2)
    blood = OPENED.component_slice(OPENED.x_named("cavity")).stop - 1
    covariance = np.linalg.inv(J[blood, :, blood])
    assert covariance[0, 1] / covariance[0, 0] > 0.9


def test_air_and_blood_stay_as_wide_as_they_are():
    """A narrow prior of tissue would let them shrink without data, a weak one widen to what is left over."""
    contrasts = [find_contrast(n) for n in ("T1", "T1c", "T2", "FLAIR")]
    prior = build_theta_prior(
        OPENED, contrasts, np.full(4, 5.0), np.full(4, 0.1), 1e6, np.full(OPENED.X, 30_000.0)
    )
    opened = model_cavity.open_prior(prior, OPENED, contrasts, 60.0)
    q = OPENED.component_slice(OPENED.x_named("cavity"))
    deviation = np.sqrt(np.einsum("qnn->qn", opened.S0[q]) / opened.nu0[q, None])
    assert np.allclose(deviation[1:], [[0.5] * 4, [0.15, 0.15, 0.25, 0.25]])
    assert np.array_equal(opened.S0[: q.start + 1], prior.S0[: q.start + 1])
    assert np.array_equal(opened.nu0[: q.start + 1], prior.nu0[: q.start + 1])
    widest = (opened.S0[-1] + 20_000 * np.eye(4)) / (opened.nu0[-1] + 20_000)  # 20 cm³ of anything
    assert widest[0, 0] < 0.2


def test_what_is_bright_in_t1_and_does_not_enhance_is_blood():
    contrasts = [find_contrast(n) for n in ("T1c", "T1")]
    mu = np.zeros((OPENED.Q, 2))
    mu[OPENED.component_slice(OPENED.x_named("GWM"))] = [5.0, 6.0]
    mu[OPENED.component_slice(OPENED.x_named("GGM"))] = [4.8, 5.8]
    theta = Theta(np.ones(OPENED.Q), mu, np.tile(np.eye(2), (OPENED.Q, 1, 1)), np.zeros((2, 4, 4, 4)))
    values = {"blood": (5.4, 6.4), "enhancing blood": (5.9, 6.4), "tumor": (5.4, 5.8), "white": (5.0, 6.0)}
    D = np.array(list(values.values())).T[..., None, None]
    D = np.tile(D.repeat(5, 1), (1, 1, 5, 5))  # slabs of five voxels, as 27 are averaged
    found = model_cavity.find_blood(OPENED, contrasts, D, theta)[2::5, 2, 2]
    assert dict(zip(values, found)) == {name: name == "blood" for name in values}
    bright = find_enhancing(OPENED, contrasts, D, theta)[2::5, 2, 2]
    assert dict(zip(values, bright)) == dict(zip(values, (False, True, True, False)))
    without = add_cavity(LABELS, blood=False)
    assert not model_cavity.find_blood(without, contrasts[:1], D[:1], theta).any()


def test_where_the_cavity_starts():
    """Blood in the tumor is added to it; what is not clear becomes core, unless most of its part is clear."""
    shape, cavity = (8, 1, 1), OPENED.cavity
    fluid, other = cavity, 1

    def mask(*values: int) -> np.ndarray:
        return np.array(values, bool).reshape(shape)

    l = np.array([other, other, fluid, fluid, other, fluid, fluid, fluid], np.uint8).reshape(shape)
    z = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.uint8).reshape(shape)
    blood = mask(1, 0, 0, 0, 1, 0, 0, 0)
    clear = mask(1, 0, 1, 0, 1, 1, 1, 0)
    fillings = model_cavity.Fillings(mask(1, 0, 1, 1, 1, 1, 1, 1), clear, blood)
    first = open_cavity(joint.Labels(l, z, z * 0), OPENED, fillings)
    assert (first.l == cavity).ravel().tolist() == [True, False, True, False, False, True, True, True]
    assert first.z.ravel().tolist() == [1, 1, 1, 1, 0, 1, 1, 1]
    assert first.y.ravel().tolist() == [1, 0, 1, 1, 0, 1, 1, 1]
    allowed = set(OPENED.states)
    assert set(zip(*(v.ravel().tolist() for v in (first.l, first.z, first.y)))) <= allowed


def test_volumes_fractions_and_masks_of_a_cavity_agree(opened):
    found, *_ = opened
    table, tally = found.table, found.tally
    for name in ("Cavity", "GTV_residual", "GTV", "Edema"):
        mean = found.volume(name).mean
        assert mean == pytest.approx(float(found.probability(name).sum()) / 1000, rel=1e-4)
    parts = [found.mask(name) for name in ("Cavity", "GTV_residual")]
    assert not (parts[0] & parts[1]).any()
    assert np.array_equal(parts[0] | parts[1], found.mask("GTV"))
    assert (found.labels[parts[0]] == table.structures[table.cavity].index).all()
    delivered = deliver(found, "T1c")
    assert np.array_equal(delivered.labels, found.labels)
    for sample in tally.iter_samples():
        inside = sample.l == table.cavity
        assert (sample.z[inside] == 1).all()
        assert (sample.y[inside] == 1).all()


@pytest.fixture(scope="module")
def plain():
    """The same patient without the option, in a program that cannot open an atlas."""

    def refuse(*given, **named):
        raise AssertionError("opened")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (pipeline, "open_atlas"),
            (initialise, "open_prior"),
            (initialise, "find_blood"),
            (gibbs, "find_odds"),
            (gibbs, "find_fillings"),
            (gibbs, "open_cavity"),
        ):
            patch.setattr(module, name, refuse)
        case = small_surgery.case_of(small_surgery.remove_core()[0])
        return segment(case, MODEL, CONFIG, seed=0, keeper=Memory())


@pytest.mark.slow
def test_without_the_option_the_model_knows_no_cavity(plain):
    """The same bits as from contrasts without a word on cavities."""
    known = tuple(
        replace(c, constraints=tuple(row for row in c.constraints if row.gmm != "cavity"))
        for c in plain.case.contrasts
    )
    assert any(len(a.constraints) < len(b.constraints) for a, b in zip(known, plain.case.contrasts))
    case = replace(plain.case, contrasts=known)
    other = segment(case, MODEL, CONFIG, seed=0, keeper=Memory())
    assert plain.table.cavity is None
    assert [plain.table.organs, plain.table.states] == [other.table.organs, other.table.states]
    for name in ("l", "z", "y"):
        assert np.array_equal(getattr(plain.votes, name), getattr(other.votes, name))
    for name in ("gamma", "mu", "Sigma", "C"):
        assert np.array_equal(getattr(plain.theta, name), getattr(other.theta, name))


def test_the_option_is_suggested_for_fluid_but_not_for_necrosis(plain, monkeypatch):
    """Necrosis is as dark in T1 and as bright in T2 as fluid, but not dark in FLAIR."""
    _, cavity, _ = small_surgery.remove_core()
    expected = small_head.truth()[0] == LABELS.l("CSF")
    monkeypatch.setattr(result_cavity, "_expects_fluid", lambda result: expected)
    monkeypatch.setattr(result_cavity, "SUGGESTED", 0.3)  # the small head has a small tumor
    monkeypatch.setattr(result_cavity, "RIM", 0.05)  # on one side of the cavity
    (note,) = review_cavity(plain)
    assert (note.id, note.level, note.action) == ("postop", "review", "use --postop after surgery")
    assert "cm³ of fluid with an enhancing rim" in note.text
    fluid = find_fluid(plain)
    assert (fluid & cavity).sum() > 0.9 * cavity.sum()
    case = plain.case
    D = case.D.copy()
    D[[c.name for c in case.contrasts].index("FLAIR"), cavity] += 1.0
    assert review_cavity(replace(plain, case=replace(case, D=D))) == []
    few = [n for n, c in enumerate(case.contrasts) if c.name != "FLAIR"]
    less = replace(case, D=case.D[few], contrasts=tuple(case.contrasts[n] for n in few))
    assert review_cavity(replace(plain, case=less)) == []


def test_what_is_noted(opened, monkeypatch):
    """What is left of the core is less than measurable, and a shell of 7 mm around half of the cavity."""
    found, *_ = opened
    notes = {note.where: note for note in review(found) if note.id == "residual"}
    assert notes["GTV_residual"].level == "info"
    assert notes["GTV_residual"].text.startswith("no residual enhancement found (")
    monkeypatch.setattr(result_cavity, "LEAST_CORE", 0.1)
    assert not any(note.id == "residual" for note in review_cavity(found))
    monkeypatch.setattr(result_cavity, "LINEAR", 8.0)
    (note,) = (note for note in review_cavity(found) if note.id == "residual")
    assert note.level == "review"
    assert note.text.endswith("cm³ is thinner than 8 mm and follows the cavity's wall")
    assert note.action == "it may be due to surgery: check it"


def test_fluid_is_clear_where_a_contrast_tells_it_from_necrosis():
    contrasts = [find_contrast(n) for n in ("T1c", "FLAIR")]
    mu = np.zeros((OPENED.Q, 2))
    theta = Theta(np.ones(OPENED.Q), mu, np.tile(np.eye(2), (OPENED.Q, 1, 1)), np.zeros((2, 4, 4, 4)))
    values = {"fluid": (-0.6, -0.6), "air": (-2.5, -2.5), "necrosis": (-0.6, 0.3), "dark": (-0.3, -0.3)}
    D = np.array(list(values.values())).T[..., None, None]
    D = np.tile(D.repeat(5, 1), (1, 1, 5, 5))  # slabs of five voxels, as 27 are averaged
    found = model_cavity.find_clear(OPENED, contrasts, D, theta)[2::5, 2, 2]
    assert dict(zip(values, found)) == {name: name in ("fluid", "air") for name in values}
    fillings = model_cavity.find_fillings(OPENED, contrasts, D, theta)
    assert dict(zip(values, fillings.any[2::5, 2, 2])) == {name: name != "necrosis" for name in values}
    odds = model_cavity.find_odds(model_cavity.find_kinds(fillings), np.ones(D.shape[1:]))[2::5, 2, 2]
    assert np.allclose(odds / odds[0], [1, 1, 0.1, 1])
    assert not model_cavity.find_clear(OPENED, contrasts[:1], D[:1], theta).any()
    without = model_cavity.find_fillings(OPENED, contrasts[:1], D[:1], theta)
    assert np.array_equal(without.clear, without.any)
    assert fluid_is_identifiable(contrasts)
    assert not any(fluid_is_identifiable([find_contrast(n)]) for n in ("T1", "T1c", "T2", "CT", "FLAIR2"))


def test_a_cavity_without_a_way_to_the_surface_is_noted(opened, monkeypatch):
    found, *_ = opened
    assert not any("no way" in note.text for note in review_cavity(found))
    monkeypatch.setattr(result_cavity, "find_closed", lambda cavity, *given: cavity)
    (note,) = (note for note in review_cavity(found) if "no way" in note.text)
    assert note.text.endswith("cm³ of fluid has no way to the surface and counts as cavity")
    assert (note.id, note.action) == ("cavity", "check that it is no cyst")
