"""Name and date of a case: what is safe in HTML, shells and file names, and nothing else."""

from __future__ import annotations

import pytest

from tumoar.vocabulary.case_name import LONGEST, CaseName
from tumoar.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    "name", ["Phantom 7", "GBM-012_a", "Fall Müller.2", "a", "患者 3", "x" * LONGEST, ""]
)
def test_plain_names_are_kept(name):
    assert CaseName(name).name == name


@pytest.mark.parametrize(
    "name",
    ["<b>x</b>", "a&b", 'a"b', "a'b", "../a", "a/b", "a\\b", "a:b", "a*", "a?", "a|b", "$(x)", "`x`", " a",
     "a ", ".a", "a.", "-rf", "_a", "a\nb", "a\x00", "a\u202eb", "a;b", "{{ a }}", "=1+1",
     "x" * (LONGEST + 1)],
)  # fmt: skip
def test_names_that_html_shells_or_file_systems_read_are_refused(name):
    with pytest.raises(UsageError) as caught:
        CaseName(name)
    assert caught.value.id == "case-name"
    assert caught.value.found is None, "a refused name may be a patient's: it is not repeated"


def test_a_date_is_a_day_that_exists():
    assert CaseName(date="2026-11-18").date == "2026-11-18"
    for wrong in (
        "18.11.2026",
        "2026-02-30",
        "2026-1-1",
        "20261118",
        "2026-W01-1",
        "٢٠٢٦-01-01",
        "2026-11-18 ",
    ):
        with pytest.raises(UsageError, match="YYYY-MM-DD"):
            CaseName(date=wrong)


def test_a_case_without_name_is_false():
    assert not CaseName()
    assert CaseName(date="2026-11-18")
