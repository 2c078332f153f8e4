"""How long a segmentation will still take, from its own pace and from the stages of the benchmark."""

from __future__ import annotations

SECONDS = {"read": 12.0, "place": 9.0, "fit": 33.0, "sample": 60.0, "write": 11.0}
"""Stages in their order, with their times in research/results/run.md; only ratios matter."""


class Forecast:
    """Follows the stages of a run."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}  # finished stages
        self._stage = ""
        self._start = 0.0
        self._share = 0.0

    def update(self, stage: str, done: int, total: int, now: float) -> None:
        """Take in a step of progress at a time in seconds."""
        name = stage.split()[0]
        if name != self._stage:
            self._spent[self._stage] = now - self._start
            self._stage, self._start = name, now
        self._share = done / max(1, total)

    def left(self, now: float) -> float | None:
        """Seconds until the end of the run; None while nothing can be said."""
        known = [name for name in self._spent if name in SECONDS]
        if self._stage not in SECONDS or not (known or self._share > 0):
            return None
        inside = now - self._start
        pace = inside / (self._share * SECONDS[self._stage]) if self._share > 0 else 0.0
        if known:
            pace = sum(self._spent[name] for name in known) / sum(SECONDS[name] for name in known)
        rest = pace * SECONDS[self._stage] - inside
        if self._share > 0:
            rest = inside * (1 - self._share) / self._share
        names = list(SECONDS)
        later = sum(SECONDS[name] for name in names[names.index(self._stage) + 1 :])
        return max(rest, 0.0) + pace * later


def clock(seconds: float) -> str:
    """Minutes and seconds, as in 3:50."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
