"""Limits: metrics, lights, and a table that is checked when it is read."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.dose import Dvh
from tumoar.errors import UsageError
from tumoar.labels import default_labels
from tumoar.limits import Limit, default_limits, judge, measure, parse_limits

DVH = Dvh(np.linspace(60, 0, 601), np.full(601, 0.01))


def test_metrics():
    assert measure(DVH, "max") == 60
    assert measure(DVH, "mean") == pytest.approx(30)
    assert measure(DVH, "D50") == pytest.approx(30)
    assert measure(DVH, "V45") == pytest.approx(25, abs=0.2)
    assert measure(DVH, "D0.6cc") == pytest.approx(54, abs=0.1)
    assert measure(Dvh(np.array([50.0]), np.array([0.01])), "D0.03cc") == 50  # smaller than 0.03 cm³


LIGHTS = [(61, 62, "green"), (55, 61, "amber"), (50, 55, "red"), (50, None, "red")]


@pytest.mark.parametrize(("limit", "hard", "light"), LIGHTS)
def test_lights(limit, hard, light):
    verdict = judge(Limit("x", "max", limit, hard), DVH, [DVH, Dvh(np.array([10.0]), np.array([1.0]))])
    assert verdict.light == light
    assert verdict.above == (0.5 if limit < 60 else 0.0)


def test_what_is_not_there_is_not_judged():
    empty = Dvh(np.zeros(0), np.zeros(0))
    assert judge(Limit("x", "max", 50), empty).light == "gray"
    assert judge(Limit("x", "max", 50), Dvh(DVH.doses, DVH.volumes, outside=0.2)).light == "gray"


def test_the_package_knows_the_papers_limits():
    limits = {limit.structure: limit for limit in default_limits()}
    for name in ("OpticChiasm", "OpticNrv_L", "OpticNrv_R", "Brainstem"):
        assert limits[name].limit == 54
    ours = {organ.name for organ in default_labels().organs} | {"Lens_L", "Lens_R"}
    assert set(limits) <= ours


@pytest.mark.parametrize(
    "row",
    [
        {"structure": "x", "metric": "D", "limit": 5},
        {"structure": "x", "metric": "max", "limit": -5},
        {"structure": "x", "metric": "max", "limit": 5, "hard": 4},
        {"structure": "x", "metric": "max", "limit": 5, "unit": "cGy"},
        {"structure": "x", "metric": "max"},
    ],
    ids=str,
)
def test_wrong_rows_are_told(row):
    with pytest.raises(UsageError):
        parse_limits({"limit": [row]})
