"""Limits: metrics, lights, and a table that is checked when it is read."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tumoar.io.files import read_toml
from tumoar.radiotherapy.dvh import Dvh
from tumoar.radiotherapy.limits import LIGHTS, Limit, default_limits, judge, measure, parse_limits
from tumoar.vocabulary.errors import TumoarError, UsageError
from tumoar.vocabulary.labels import default_labels

DVH = Dvh(np.linspace(60, 0, 601), np.full(601, 0.01))


def test_metrics():
    assert measure(DVH, "max") == 60
    assert measure(DVH, "mean") == pytest.approx(30)
    assert measure(DVH, "D50") == pytest.approx(30)
    assert measure(DVH, "V45") == pytest.approx(25, abs=0.2)
    assert measure(DVH, "D0.6cc") == pytest.approx(54, abs=0.1)
    assert measure(Dvh(np.array([50.0]), np.array([0.01])), "D0.03cc") == 50  # smaller than 0.03 cm³


CASES = [(61, 62, "green"), (55, 61, "amber"), (50, 55, "red"), (50, None, "red")]


@pytest.mark.parametrize(("limit", "hard", "light"), CASES)
def test_lights(limit, hard, light):
    verdict = judge(Limit("x", "max", limit, hard), DVH, [DVH, Dvh(np.array([10.0]), np.array([1.0]))])
    assert verdict.light == light
    assert verdict.above == (0.5 if limit < 60 else 0.0)


def test_what_is_not_there_is_not_judged():
    empty = Dvh(np.zeros(0), np.zeros(0))
    assert judge(Limit("x", "max", 50), empty).light == "gray"
    assert judge(Limit("x", "max", 61), Dvh(DVH.doses, DVH.volumes, outside=0.2)).light == "gray"


def test_what_is_seen_only_in_samples_is_said():
    verdict = judge(
        Limit("x", "max", 50), Dvh(np.zeros(0), np.zeros(0)), [DVH, Dvh(np.zeros(0), np.zeros(0))]
    )
    assert (verdict.light, verdict.note) == ("gray", "not outlined, but in 50 % of the samples")


def test_a_dose_that_is_too_high_stays_red_whatever_lies_outside():
    verdict = judge(Limit("x", "max", 50, 55), Dvh(DVH.doses, DVH.volumes, outside=0.2))
    assert verdict.light == "red"
    assert verdict.note == "20.0 % of it lies outside the dose"


@pytest.mark.parametrize(
    ("metric", "light"), [("D0.03cc", "gray"), ("max", "gray"), ("mean", "green"), ("V59", "green")]
)
def test_a_hot_spot_may_lie_in_the_least_part_outside(metric, light):
    verdict = judge(Limit("x", metric, 61), Dvh(DVH.doses, DVH.volumes, outside=0.002))
    assert verdict.light == light
    assert bool(verdict.note) == (light == "gray")


# ---- samples -----------------------------------------------------------------------------------------------


def constant(dose, volume=1.0):
    return Dvh(np.array([float(dose)]), np.array([volume]))


@pytest.mark.parametrize(
    ("above", "light"),
    [(0, "green"), (1, "green"), (2, "amber"), (20, "amber")],
    ids=["none", "one of 20", "two of 20", "all"],
)
def test_at_least_95_percent_of_the_samples_are_within_a_green_limit(above, light):
    samples = [constant(54.5 if i < above else 50) for i in range(20)]
    verdict = judge(Limit("x", "max", 54, 55), constant(51.3), samples)
    assert verdict.light == light
    assert verdict.above == above / 20
    assert ("samples are above the limit" in verdict.note) == (light != "green")


def test_an_outline_worse_than_its_samples_keeps_its_light():
    verdict = judge(Limit("x", "max", 54, 55), constant(56), [constant(50)] * 4)
    assert verdict.light == "red"
    assert verdict.note == "the outline is red, but at least 95 % of the samples are green"


def test_an_outline_that_no_sample_has_is_not_green():
    verdict = judge(Limit("x", "max", 54), constant(10), [constant(0, 0.0)] * 3)
    assert (verdict.light, verdict.note) == ("amber", "it is in none of the samples")


def judged_alone(limit, value):
    hard = limit.hard or limit.limit
    return "green" if value <= limit.limit else "amber" if value <= hard else "red"


curves = st.builds(
    lambda doses, size: Dvh(np.sort(np.array(doses))[::-1], np.full(len(doses), size)),
    st.lists(st.floats(0, 80), min_size=1, max_size=12),
    st.sampled_from([1e-4, 0.005, 0.02, 1.0]),
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    curves,
    st.lists(curves, max_size=25),
    st.sampled_from(["D0.03cc", "D0.1cc", "D5", "D100", "V20", "mean", "max"]),
    st.floats(1, 80),
    st.floats(0, 10),
)
def test_no_light_is_better_than_that_of_the_outline_or_of_the_samples(outline, samples, metric, soft, more):
    limit = Limit("x", metric, soft, soft + more)
    verdict = judge(limit, outline, samples)
    alone = LIGHTS.index(judged_alone(limit, measure(outline, metric)))
    shown = LIGHTS.index(verdict.light)
    assert shown >= alone
    values = np.array([measure(s, metric) for s in samples])
    if len(values):
        within = [np.mean(values <= bound) >= 0.95 for bound in (limit.limit, limit.hard)]
        theirs = 0 if within[0] else 1 if within[1] else 2
        assert shown == max(alone, theirs)
        assert bool(verdict.note) or alone == theirs
    else:
        assert shown == alone
    if metric.endswith("cc") and outline.volume < float(metric[1:-2]):
        assert "smaller than" in verdict.note
        assert measure(outline, metric) == outline.maximum


def test_a_structure_smaller_than_the_volume_is_judged_by_its_highest_dose():
    tiny = Dvh(np.array([60.0, 20.0]), np.array([0.005, 0.005]))
    verdict = judge(Limit("x", "D0.03cc", 54), tiny)
    assert (verdict.value, verdict.light) == (60.0, "red")
    assert verdict.note == "smaller than 0.03 cm³: judged by its highest dose"
    cool = judge(Limit("x", "D0.03cc", 70), tiny)
    assert cool.light == "green"
    assert cool.note


# ---- tables ------------------------------------------------------------------------------------------------


def test_the_package_knows_the_papers_limits():
    limits = {limit.structure: limit for limit in default_limits()}
    for name in ("OpticChiasm", "OpticNrv_L", "OpticNrv_R", "Brainstem"):
        assert limits[name].limit == 54


def test_every_limit_of_the_package_has_a_source_and_a_structure_that_is_outlined():
    ours = {organ.name for organ in default_labels().organs}
    for limit in default_limits():
        assert limit.structure in ours
        assert limit.source
        assert judge(limit, DVH).row()["source"] == limit.source


ROW = {"structure": "x", "metric": "max", "limit": 5}
WRONG = [
    {"metric": "D"}, {"metric": "D0cc"}, {"metric": "D0.0cc"}, {"metric": "D0"}, {"metric": "D101"},
    {"metric": "V-1"}, {"metric": "V0"}, {"metric": "V9999"}, {"metric": "V1e300"},
    {"metric": "D" + "9" * 400}, {"metric": "D٣"}, {"metric": "D5\n"},
    {"metric": 5}, {"metric": True}, {"metric": ["max"]},
    {"limit": -5}, {"limit": 0}, {"limit": float("nan")}, {"limit": float("inf")}, {"limit": True},
    {"limit": "5"}, {"limit": 5400}, {"limit": 10**400}, {"limit": None}, {"limit": [5]},
    {"metric": "V54", "limit": 101}, {"metric": "V54", "limit": 100},
    {"source": "x" * 501}, {"source": "a\nb"}, {"source": "\x1b[2J"},
    {"hard": 4}, {"hard": float("nan")}, {"hard": float("inf")}, {"hard": True}, {"hard": "6"},
    {"structure": ""}, {"structure": "  "}, {"structure": 5}, {"structure": "x" * 65},
    {"structure": "a\x1b[2J"}, {"source": 5}, {"unit": "cGy"},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=lambda change: ascii(change)[:40])
def test_wrong_rows_are_refused(change):
    with pytest.raises(UsageError, match="E2-limits"):
        parse_limits({"limit": [{**ROW, **change}]})


@pytest.mark.parametrize("left_out", ["structure", "metric", "limit"])
def test_a_row_needs_structure_metric_and_limit(left_out):
    with pytest.raises(UsageError, match="E2-limits"):
        parse_limits({"limit": [{k: v for k, v in ROW.items() if k != left_out}]})


@pytest.mark.parametrize(
    "table",
    [{}, {"limit": []}, {"limit": True}, {"limit": 5}, {"limit": "x"}, {"limit": {}}, {"limit": [5]},
     {"limit": [ROW], "limits": [ROW]}, {"limit": [ROW, ROW]}, {"limit": [ROW, {**ROW, "structure": "X"}]},
     {"limit": [ROW] * 2000}],
    ids=lambda table: ascii(table)[:40],
)  # fmt: skip
def test_tables_without_usable_limits_are_refused(table):
    with pytest.raises(UsageError, match="E2-limits"):
        parse_limits(table)


def test_two_metrics_of_one_structure_are_two_limits():
    assert len(parse_limits({"limit": [ROW, {**ROW, "metric": "mean"}]})) == 2


def test_a_source_may_be_left_out():
    (limit,) = parse_limits({"limit": [ROW]})
    assert limit.source == ""


numbers = st.one_of(
    st.integers(-10, 10**25), st.floats(), st.booleans(), st.text(max_size=5), st.none(), st.just([1])
)
metrics = st.one_of(
    st.from_regex(r"[DV][0-9]{0,5}(\.[0-9]{0,3})?(cc|%|Gy)?", fullmatch=True),
    st.sampled_from(["max", "mean"]),
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "structure": st.one_of(st.sampled_from(["x", "Brainstem"]), st.text(max_size=70), numbers),
        "metric": st.one_of(metrics, st.text(max_size=6), numbers),
        "limit": numbers,
        "hard": numbers,
        "source": st.one_of(st.text(max_size=9), numbers),
        "unit": st.just("Gy"),
    },
)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.one_of(st.fixed_dictionaries({"limit": st.lists(rows, max_size=3)}), st.just({}), rows))
def test_tables_at_random_are_parsed_or_refused(table):
    try:
        found = parse_limits(table)
    except UsageError:
        return
    for limit in found:
        most = 100 if limit.metric.startswith("V") else 200
        assert 0 < limit.limit <= (limit.hard or limit.limit) <= most
        assert judge(limit, DVH, [DVH]).light in LIGHTS


def toml_value(value):
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else f'"{value}"'


texts = st.lists(
    st.one_of(
        st.just("[[limit]]"),
        st.just("[limit]"),
        st.just('structure = "Brainstem"'),
        st.just('metric = "D0.03cc"'),
        st.builds(lambda key, value: f"{key} = {toml_value(value)}",
                  st.sampled_from(["structure", "metric", "limit", "hard"]),
                  st.one_of(st.floats(), st.integers(), st.booleans(), st.sampled_from(["V5", "max"]))),
        st.text(max_size=12),
        st.sampled_from(["limit = " + "[" * 20_000, "limit = 1" + "0" * 5000, "x = 2020-99-99"]),
    ),
    max_size=8,
).map("\n".join)  # fmt: skip


@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.large_base_example],
)
@given(texts)
def test_files_at_random_are_parsed_or_refused(tmp_path, text):
    (tmp_path / "limits.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = parse_limits(read_toml(tmp_path / "limits.toml", "the limits"))
    except TumoarError:
        return
    assert found == parse_limits(tomllib.loads(text))
