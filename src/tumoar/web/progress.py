"""Progress of a case: stages, elapsed time, and time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

STAGES = {"read": 0.09, "place": 0.08, "fit": 0.19, "sample": 0.56, "write": 0.08}
"""Stages and their shares of the time of a run: a whole head in research/results/run.md."""
EARLY = 0.05
"""Share of the work before which no time is given."""


class Progress:
    """Follows the events of one run."""

    def __init__(self) -> None:
        self.stage = ""
        self.share = 0.0
        self.figures: dict[str, float] = {}
        self._start = time.monotonic()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Receive an event of the process; it never goes back."""
        stage = str(event.get("stage") or "").split(" ")[0]
        if stage not in STAGES:
            return
        done, total = event.get("done"), event.get("total")
        part = done / total if isinstance(done, int) and isinstance(total, int) and total > 0 else 0.0
        before = sum(list(STAGES.values())[: list(STAGES).index(stage)])
        share = before + STAGES[stage] * min(1.0, part)
        if share >= self.share:
            self.stage, self.share = stage, share
        figures = event.get("figures")
        if isinstance(figures, dict):
            self.figures = {str(k): float(v) for k, v in figures.items() if isinstance(v, int | float)}

    def describe(self) -> dict[str, Any]:
        """For the page: seconds so far, and about how many are left (None at first)."""
        elapsed = time.monotonic() - self._start
        left = elapsed * (1 - self.share) / self.share if self.share > EARLY else None
        return {
            "stage": self.stage,
            "stages": list(STAGES),
            "share": round(self.share, 3),
            "seconds": round(elapsed, 1),
            "left": None if left is None else round(left, 1),
            "figures": {name: round(value, 2) for name, value in self.figures.items()},
        }
