"""The preset `paper` is the paper: every row of research/paper.toml holds, and every setting is in one."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import small_head
from small_run import CONFIG, MODEL, run

from tumoar.app.settings import resolve
from tumoar.inference.initialise import release_core_components, tie_core_components, turn_to_core
from tumoar.inference.tally import Tally
from tumoar.inference.tumor_prior import TumorPrior
from tumoar.io.models import default_model
from tumoar.model.bias import PER_AXIS
from tumoar.model.generative import select_atlas, select_prior, temper_priors
from tumoar.model.gmm import Theta
from tumoar.model.joint import Labels
from tumoar.model.shape.crbm import TIE
from tumoar.model.theta_prior import build_mean_constraints, build_theta_prior
from tumoar.result.parts import find_islands
from tumoar.vocabulary.config import METHODS, PAPER, Config, find_changes, flatten
from tumoar.vocabulary.contrasts import default_contrasts, drop_added_bounds

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "research").is_dir():
    pytest.skip("a source distribution has no research folder", allow_module_level=True)
sys.path.append(str(ROOT / "research"))

import deviations  # noqa: E402
from paper import PAGE, read_table, render  # noqa: E402

ROWS, _ = read_table()
PRESET, DEFAULT = (flatten(c.model_dump(mode="json")) for c in (PAPER, Config()))
MODEL_OF_PAPER = select_atlas(default_model(), PAPER)
LABELS = MODEL_OF_PAPER.labels
CONTRASTS = tuple(drop_added_bounds(default_contrasts()[name]) for name in ("T1", "T1c", "T2", "FLAIR"))
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_preset_holds_to_the_table(row):
    assert {name: PRESET[name] for name in row.paper} == dict(row.paper)
    if row.check:
        CHECKS[row.check]()


def test_every_setting_is_in_one_row():
    """A new setting fails here until the table says what it is in the paper."""
    listed = [name for row in ROWS for name in row.paper]
    assert sorted(listed) == sorted(DEFAULT)


def test_every_deviation_is_explained():
    for row in ROWS:
        assert bool(row.default) or not row.deviates, row.name
    changed = set(find_changes(PAPER, Config()))
    assert changed == {n for row in ROWS for n, v in row.paper.items() if v != DEFAULT[n]}


def test_every_check_is_used():
    assert sorted(CHECKS) == sorted(row.check for row in ROWS if row.check)


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text("utf-8") == render(), "run research/paper.py"


# ---- what no setting says --------------------------------------------------


@check
def sizes():
    assert (LABELS.K, LABELS.X, LABELS.Q, LABELS.in_brain.sum(), len(LABELS.states)) == (17, 12, 21, 7, 31)
    shipped, merged = default_model().atlas, MODEL_OF_PAPER.atlas
    two = shipped.labels.l("gray matter"), shipped.labels.l("deep gray matter")
    scale = 1 - merged.alpha[:, LABELS.l("unspecified brain tissue")]
    rest = 1 - shipped.alpha[:, shipped.labels.l("unspecified brain tissue")]
    gray = merged.alpha[:, LABELS.l("gray matter")]
    np.testing.assert_allclose(gray / scale, shipped.alpha[:, two].sum(1) / rest, atol=1e-6)


@check
def mapping():
    of = {gmm.name: [s.name for s in LABELS.structures if s.gmm == gmm.name] for gmm in LABELS.gmms}
    sides = [f"{side} {part}" for part in ("optic nerve", "eye tissue") for side in ("left", "right")]
    assert of == {
        "core": [], "edema": [],
        "GGM": ["gray matter", "left hippocampus", "right hippocampus"],
        "GWM": ["white matter", "brainstem"],
        "GNE": sides,
        "eye fluid": ["left eye fluid", "right eye fluid"],
        "CSF": ["CSF"], "background": ["background"], "unspecified": ["unspecified brain tissue"],
        "chiasm": ["optic chiasm"], "fat": ["eye socket fat"], "muscle": ["eye socket muscles"],
    }  # fmt: skip


@check
def components():
    three, two = {"core", "muscle", "background"}, {"fat", "CSF", "GNE"}
    assert {g.name: g.components for g in LABELS.gmms} == {
        g.name: 3 if g.name in three else 2 if g.name in two else 1 for g in LABELS.gmms
    }


@check
def restriction():
    for l, z, y in itertools.product(range(LABELS.K), (0, 1), (0, 1)):
        assert LABELS.is_allowed(l, z, y) == (not (z == 0 and y == 1) and (z == 0 or LABELS.in_brain[l]))


@check
def unspecified():
    alpha = MODEL_OF_PAPER.atlas.alpha
    np.testing.assert_allclose(alpha[:, LABELS.l("unspecified brain tissue")], 0.01 / 1.01, rtol=1e-5)
    np.testing.assert_allclose(alpha.sum(1), 1, atol=1e-6)


@check
def filters():
    model = select_prior(MODEL_OF_PAPER, PAPER)
    for prior, trained in zip(
        temper_priors((model.shape_z, model.shape_y), PAPER, 1.0),
        (default_model().shape_z, default_model().shape_y),
    ):
        assert prior.w.shape == (40, 7, 7, 7)
        assert TIE == 2
        np.testing.assert_array_equal(prior.w, trained.w)
        np.testing.assert_array_equal(prior.b, trained.b)
        assert prior.a == trained.a


@check
def bias_functions():
    assert PER_AXIS**3 == 64


@check
def bounds():
    A, _ = build_mean_constraints(LABELS, CONTRASTS)
    assert len(A) == 12
    rows = [c for contrast in CONTRASTS for c in contrast.constraints if "cavity" not in (c.gmm, c.beside)]
    assert sum(len(c.refs) for c in rows) == 12


def _prior():
    variance, expected = np.array([0.5, 1.0, 2.0, 3.0]), np.arange(1.0, 13) * 1000
    return variance, expected, build_theta_prior(LABELS, CONTRASTS, np.zeros(4), variance, 1e6, expected)


@check
def scatter():
    variance, _, prior = _prior()
    for q, x in enumerate(LABELS.x_of_component):
        X = 1 if LABELS.gmms[x].name == "unspecified" else 12
        np.testing.assert_allclose(prior.S0[q], prior.nu0[q] / X**2 * np.diag(variance))


@check
def strength():
    _, expected, prior = _prior()
    x = LABELS.x_of_component
    np.testing.assert_allclose(prior.nu0, 4 + 0.1 * (expected / LABELS.G)[x])
    assert prior.alpha0 == pytest.approx(1 + 1e-4 * 1e6)


@check
def fractions():
    """The printed biases and the linear form give the same fractions in the brain, by enumeration."""
    w, u = PAPER.gem.w, PAPER.gem.u
    a_y, a_z = np.log(u / (1 - u)), np.log((w - w * u) / (1 - w))
    printed = {(z, y): np.exp(z * a_z + y * a_y) for z, y in ((0, 0), (1, 0), (1, 1))}
    total = sum(printed.values())
    shape, brain = (1, 1, 1), np.array([1])
    tumor = TumorPrior(np.full(shape, w, np.float32), u, brain, np.ones(shape, np.float32))
    normal, edema, core = tumor.apply(np.array([[[[0.0, 1.0, 0.0, 0.0]]]], np.float32)).ravel()[1:]
    assert normal == pytest.approx(printed[0, 0] / total)
    assert edema == pytest.approx(printed[1, 0] / total)
    assert core == pytest.approx(printed[1, 1] / total)


@check
def start():
    assert [c.tumor_start for c in CONTRASTS] == [
        {"core": 0.2, "edema": 0.2},
        {"core": 1.5, "edema": 0.2},
        {"core": 0.7, "edema": 0.7},
        {"core": 1.0, "edema": 1.0},
    ]  # from the mean of the image: tests/inference/test_gem.py


@check
def tied_core():
    few = tie_core_components(LABELS)
    assert few.G[few.core] == 1
    rng = np.random.default_rng(0)
    unit = np.tile(np.eye(2), (few.Q, 1, 1))
    theta = Theta(np.ones(few.Q), rng.normal(size=(few.Q, 2)), unit, np.zeros((2, 4, 4, 4)))
    core = LABELS.component_slice(LABELS.core)
    released = release_core_components(theta, few, LABELS)
    np.testing.assert_allclose(released.gamma[core], 1 / 3)
    np.testing.assert_array_equal(released.mu[core], theta.mu[few.component_slice(few.core)].repeat(3, 0))


@check
def core_start():
    z = np.ones((10, 10, 10), np.uint8)
    y = np.zeros_like(z)
    y[:2] = 1  # not enhancing, enclosing nothing: as probable as Algorithm 2 says
    found = turn_to_core(Labels(z, z, y), np.random.default_rng(0))
    assert found.y.sum() == 200 + 800 // 5
    assert (found.y >= y).all()


@check
def vote():
    """l, z and y separately: tumor wins where the brain splits its votes, and l does not follow."""
    tally = Tally(LABELS, np.ones((1, 1, 1), np.uint8))
    names = ["background"] * 2 + ["gray matter", "white matter", "CSF"]
    for name in names:
        z = name != "background"
        tally.add(Labels(*(np.full((1, 1, 1), v, np.uint8) for v in (LABELS.l(name), z, 0))))
    votes = tally.vote(PAPER.vote)
    assert (votes.l.item(), votes.z.item()) == (LABELS.l("background"), 1)
    assert LABELS.in_brain[tally.vote().l.item()]


@check
def parts():
    z = np.zeros((9, 9, 9), bool)
    z[1:4, 1:4, 1:4], z[8, 8, 8] = True, True
    normal = np.full(z.shape, -1.0)
    assert find_islands(z, z & False, normal, 0.1, 0.1, 0.2).any()
    assert not find_islands(z, z & False, normal, 0.1, PAPER.least_tumor, PAPER.least_share).any()


# ---- a whole run --------------------------------------------------


def test_a_run_has_the_labels_and_bounds_of_the_paper():
    gem = PAPER.gem.model_copy(
        update={n: getattr(CONFIG.gem, n) for n in ("levels", "outer_iterations", "em_iterations")}
    )
    gibbs = PAPER.gibbs.model_copy(update={"burn_in": 4, "samples": 4})
    seen = []
    result = run(
        config=PAPER.model_copy(
            update={"gem": gem, "gibbs": gibbs, "prior": "mrf", "beta_z": 0.4, "beta_y": 0.4}
        ),
        watch=lambda progress: seen.append(progress.stage),
    )
    assert (result.table.K, result.table.X) == (17, 12)
    assert {s.name for s in MODEL.labels.structures} - {s.name for s in result.table.structures} == {
        "deep gray matter"
    }
    assert not any(c.added for contrast in result.case.contrasts for c in contrast.constraints)
    assert result.config.gibbs.tau == 1.0
    assert not result.islands.any()
    _, z, _ = small_head.truth()
    assert small_head.dice(result.votes.z, z) > 0.8
    assert "sample" in seen


def test_methods_are_named():
    assert set(METHODS) == {"default", "paper"}
    assert METHODS["default"] == Config()


# ---- research/deviations.py --------------------------------------------------


def test_every_configuration_of_the_comparison_is_a_run_that_differs(tmp_path):
    rows = [row for row in ROWS if row.deviates and row.compare]
    made = deviations.configurations(rows)
    assert len(made) == 2 + 2 * len(rows)
    for c in made:
        file = tmp_path / "settings.toml"
        file.write_text(deviations.to_toml(c.settings), "utf-8")
        flags = {"fast": False, "tumor": True, "prior": None, "chains": None, "gibbs": {}}
        config = resolve(file, method=c.method, **flags)
        assert set(find_changes(config, METHODS[c.method])) == {
            name
            for name, value in c.settings.items()
            if flatten(METHODS[c.method].model_dump())[name] != value
        }
        assert (config != METHODS[c.method]) == (c.base is not None), c.name


def test_taking_back_every_deviation_is_the_paper_s_method():
    every = {name: value for row in ROWS if row.deviates for name, value in row.paper.items()}
    assert {**DEFAULT, **every} == PRESET


def test_paired_differences_leave_out_patients_without_an_outline():
    first = {"a": {"core_hd95": 2.0}, "b": {"core_hd95": np.inf}, "c": {"core_hd95": 5.0}}
    second = {"a": {"core_hd95": 3.0}, "b": {"core_hd95": 1.0}, "c": {"core_hd95": 7.0}}
    assert deviations.difference(second, first, "core_hd95")[0] == pytest.approx(1.5)
    assert deviations.difference({}, first, "core_hd95") is None
    page = deviations.page(
        deviations.configurations(ROWS[:1]),
        {
            "default": _figures(first),
            "paper": {},
            "default-deep-gray": _figures(second),
            "paper+deep-gray": {},
        },
    )
    assert "| default-deep-gray | 3 |" in page


def _figures(rows):
    return {name: {**dict.fromkeys(deviations.FIGURES, 1.0), **row} for name, row in rows.items()}
