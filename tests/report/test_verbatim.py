"""Names in plots are shown, whatever they hold."""

from __future__ import annotations

import pytest

from tumoar.report.boxes import box_plots
from tumoar.report.verbatim import verbatim
from tumoar.result.scores import Scores

SCORES = Scores(0.5, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0)


@pytest.mark.parametrize("name", ["$x^$", "$", "$$", r"\$x$", r"$\frac$", "_Brain", "a_b^c", "", "x$y$z$"])
def test_any_name_can_be_drawn(tmp_path, name):
    sides = {"this": [{name: SCORES, "GTV": SCORES}, {"GTV": SCORES}], name: [{"GTV": SCORES}]}
    box_plots(tmp_path / "boxes.png", sides)
    assert (tmp_path / "boxes.png").stat().st_size > 1000


def test_names_without_marks_stay_as_they_are():
    assert verbatim("OpticNrv_L") == "OpticNrv_L"
