"""Cells of tables: nothing in them steers a terminal or is computed by a spreadsheet, and numbers stay."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tumoar.result.folder import write_table
from tumoar.vocabulary.tables import FORMULA, format_cell, to_tsv


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("GTV", "GTV"), (1.5, "1.5"), (-2, "-2"), ("-2.5e-3", "-2.5e-3"), ("+7", "+7"), (None, "None"),
        ("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("-2+3", "'-2+3"), ("+cmd|'x'!A0", "'+cmd|'x'!A0"),
        ("\t=1", "'=1"), ("\r\n=1", "'=1"), ("a\tb\nc", "a b c"), ("-inf", "'-inf"), ("-1_0", "'-1_0"),
        ("＝1", "'＝1"),
        ("\x1b[2Jx", "?[2Jx"), ("\x9b31m", "?31m"), ("a\u202eb", "a?b"), ("\u2066x", "?x"), ("\udc80", "?"),
    ],
)  # fmt: skip
def test_cells(value, text):
    assert format_cell(value) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.floats(), st.none())), min_size=1)
)
def test_any_table_is_lines_of_cells_that_are_safe(rows):
    text = to_tsv(rows, "n/a")
    assert all(c.isprintable() or c in "\t\n" for c in text)
    read = list(csv.reader(io.StringIO(text), delimiter="\t"))
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return
    assert [len(cells) for cells in read] == [len(names)] * (len(rows) + 1)
    for found in (c for cells in read for c in cells if c.startswith(FORMULA)):
        float(found)


def test_tables_of_a_result_are_written_that_way(tmp_path):
    write_table(
        tmp_path / "t.tsv", [{"name": "=HYPERLINK()", "mean_cm3": -1.5}, {"name": "\x1b]0;x", "mean_cm3": 2}]
    )
    assert (tmp_path / "t.tsv").read_text() == "name\tmean_cm3\n'=HYPERLINK()\t-1.5\n?]0;x\t2\n"
