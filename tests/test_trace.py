"""The trace table: every test that it names exists, and nothing is left without a counterpart."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import trace_table  # noqa: E402

TRACE = trace_table.read_trace()
RISKS, REQUIREMENTS = TRACE["risk"], TRACE["requirement"]
NAMED = sorted({test for row in REQUIREMENTS for test in row["tests"]})


@pytest.mark.parametrize("test", NAMED)
def test_every_named_test_exists(test):
    name, _, function = test.partition("::")
    found = {
        node.name
        for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert found
    assert not function or function in found


def test_every_requirement_controls_known_risks_and_is_tested():
    for row in REQUIREMENTS:
        assert set(row) == {"id", "text", "risks", "tests"}, row["id"]
        assert row["risks"]
        assert set(row["risks"]) <= set(RISKS), row["id"]
        assert len(set(row["tests"])) == len(row["tests"]) > 0, row["id"]
    names = [row["id"] for row in REQUIREMENTS]
    assert len(set(names)) == len(names)


def test_every_risk_is_controlled():
    controlled = {risk for row in REQUIREMENTS for risk in row["risks"]}
    assert set(RISKS) == controlled
    for risk in RISKS.values():
        assert set(risk) == {"hazard", "harm", "severity"}
        assert risk["severity"] in ("low", "medium", "high")


def test_the_page_is_the_rendered_one():
    assert trace_table.PAGE.read_text("utf-8") == trace_table.render(TRACE), (
        "run `python tools/trace_table.py`"
    )
