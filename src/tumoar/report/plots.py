"""Small line plots as SVG, with selectable text and colors that follow the light or dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40


@dataclass(frozen=True)
class Line:
    """A curve, with an optional name at its peak; `kind` is a CSS class."""

    x: Sequence[float] | Array
    y: Sequence[float] | Array
    color: str | None = None
    kind: str = "line"
    name: str = ""


@dataclass(frozen=True)
class Mark:
    """A bound on the x axis and the allowed side: 1 right, −1 left, 0 both."""

    x: float
    color: str | None = None
    side: int = 0
    title: str = ""


@dataclass(frozen=True)
class Span:
    """A shaded part of the x axis with its name."""

    start: float
    stop: float
    text: str


def plot(
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    marks: Sequence[Mark] = (),
    spans: Sequence[Span] = (),
    y_range: tuple[float, float] | None = None,
) -> str:
    """SVG of curves with labeled axes."""
    xs = np.concatenate([np.asarray(line.x, float) for line in lines])
    ys = np.concatenate([np.asarray(line.y, float) for line in lines])
    x_low, x_high = _wide(xs.min(), xs.max())
    y_low, y_high = y_range or _wide(ys.min(), ys.max() + 0.05 * (ys.max() - ys.min()))

    def px(v: float | Array) -> Array:
        return LEFT + (np.asarray(v) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def py(v: float | Array) -> Array:
        return HEIGHT - BOTTOM - (np.asarray(v) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{y} by {x}")}">'
    ]
    for span in spans:
        start, stop = float(px(max(span.start, x_low))), float(px(min(span.stop, x_high)))
        size = f'width="{stop - start:.1f}" height="{floor - TOP}"'
        parts.append(f'<rect class="span" x="{start:.1f}" y="{TOP}" {size}/>')
        parts.append(f'<text class="note" x="{start + 5:.1f}" y="{TOP + 13}">{escape(span.text)}</text>')
    for tick in _ticks(y_low, y_high, 4):
        at = float(py(tick))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(x_low, x_high, 6):
        at = float(px(tick))
        parts.append(f'<text class="tick" x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{tick:g}</text>')
    for line in lines:
        parts.append(
            _path(line, px(np.asarray(line.x, float)), np.clip(py(np.asarray(line.y, float)), TOP, floor))
        )
    peaks = [(float(px(line.x[i])), float(py(line.y[i])), line.name)
             for line in lines if line.name for i in [int(np.argmax(line.y))]]  # fmt: skip
    parts += [
        f'<text class="peak" x="{a:.1f}" y="{b:.1f}">{escape(text)}</text>' for a, b, text in _apart(peaks)
    ]
    for mark in marks:
        if x_low <= mark.x <= x_high:
            parts.append(_marker(float(px(mark.x)), floor, mark))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(
        f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>'
    )
    parts.append(f'<text class="name" transform="translate(12 {TOP + (floor - TOP) / 2:.0f}) rotate(-90)" '
                 f'text-anchor="middle">{escape(y)}</text></svg>')  # fmt: skip
    return "".join(parts)


def _path(line: Line, x: Array, y: Array) -> str:
    points = " L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
    closed = ""
    if line.kind in ("fill", "bars"):
        closed = f" L{x[-1]:.1f},{HEIGHT - BOTTOM} L{x[0]:.1f},{HEIGHT - BOTTOM} Z"
    elif line.kind == "band":
        closed = " Z"
    return f'<path class="{line.kind}"{_style(line.color)} d="M{points}{closed}"/>'


def _apart(peaks: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Positions for the names of peaks: above each peak, and above names already placed."""
    out: list[tuple[float, float, str]] = []
    for x, y, text in sorted(peaks, key=lambda peak: -peak[1]):
        half = 3.2 * len(text)
        x, y = min(max(x, LEFT + half), WIDTH - RIGHT - half), y - 4
        while any(abs(x - a) < half + 3.2 * len(other) and abs(y - b) < 11 for a, b, other in out):
            y -= 1
        out.append((x, y, text))
    return out


def _marker(x: float, floor: int, mark: Mark) -> str:
    """A dashed line with a triangle toward the allowed side."""
    style, tip = _style(mark.color), x + 7 * mark.side
    line = f'<line class="mark"{style} x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>'
    triangle = f'<path class="tip"{style} d="M{x:.1f},{TOP} L{tip:.1f},{TOP + 4} L{x:.1f},{TOP + 8} Z"/>'
    return f"<g><title>{escape(mark.title)}</title>{line}{triangle if mark.side else ''}</g>"


def _style(color: str | None) -> str:
    return f' style="--c:{escape(color)}"' if color else ""


def _wide(low: float, high: float) -> tuple[float, float]:
    """A nonempty range."""
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(high) + 0.5)


def _ticks(low: float, high: float, count: int) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [
        float(t) for t in MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high
    ]
