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
from tumoar.model import joint, tumor_means
from tumoar.model.cavity import RARE, open_atlas
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import build_mean_constraints
from tumoar.numerics.voxels import WITH_DATA
from tumoar.result import cavity as result_cavity
from tumoar.result.cavity import find_fluid, review_cavity
from tumoar.result.checks import review
from tumoar.result.native import deliver
from tumoar.result.scores import compare_organs
from tumoar.vocabulary.contrasts import find_contrast
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
    assert add_cavity(LABELS, blood=False).G[-1] == 1
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
    mu[q] = [[-1, -1, 1, -1], [0.5, 0.5, 0, 0]]
    assert (A @ mu.ravel() <= b)[own].all()
    for n, wrong in enumerate((0.5, 0.5, -0.5, 0.5)):
        broken = mu.copy()
        broken[q.start, n] = wrong
        assert not (A @ broken.ravel() <= b)[own].all()
    broken = mu.copy()
    broken[q.start + 1, 0] = -0.5
    assert not (A @ broken.ravel() <= b)[own].all()
    ours, _ = build_mean_constraints(LABELS, contrasts)
    assert len(ours) == len(A) - own.sum()


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


@pytest.fixture(scope="module")
def opened():
    D, cavity, core = small_surgery.remove_core()
    case = small_surgery.case_of(D)
    config = CONFIG.model_copy(update={"postop": True, "least_tumor": 0.0})
    return segment(case, MODEL, config, seed=0, keeper=Memory(), keeps_samples=True), cavity, core


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


def test_blood_without_data_stays_where_blood_is():
    """The prior of means has its maximum over blood at its distance from white matter."""
    contrasts = [find_contrast(n) for n in ("T1", "T1c", "T2", "FLAIR")]
    relations = tumor_means.relate_tumor_means(OPENED, contrasts, {"core": 80.0, "edema": 80.0})
    J, j = relations.J.reshape(OPENED.Q, 4, -1), relations.j.reshape(OPENED.Q, 4)
    mu = np.zeros((OPENED.Q, 4))
    mu[OPENED.component_slice(OPENED.x_named("GWM"))] = white = np.array([6.2, 6.0, 5.0, 5.5])
    blood = OPENED.component_slice(OPENED.x_named("cavity")).start + 1
    own = J[blood].reshape(4, OPENED.Q, 4)
    rest = np.einsum("nqm,qm->n", own, mu)
    at = np.linalg.solve(own[:, blood], j[blood] - rest)
    offsets = [tumor_means.blood_offsets()[c.name] for c in contrasts]
    assert np.allclose(at, white + [mean for mean, _ in offsets])
    assert np.allclose(np.diag(own[:, blood]) ** -0.5, [deviation for _, deviation in offsets])


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
            (tumor_means, "_tie_fluid"),
            (tumor_means, "_tie_blood"),
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
    assert note.text.endswith("cm³ is thinner than 8 mm and follows the wall of the cavity")
    assert note.action == "it may be due to surgery: check it"
