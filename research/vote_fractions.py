"""Vote fractions against the truth, tenth by tenth, for several pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BINS = 10

Sums = Sequence[Sequence[float]]


def binned(share: np.ndarray, true: np.ndarray) -> list[list[float]]:
    """Per tenth of the shares strictly between none and all: voxels, sum of shares, how many are true."""
    at = (share > 0) & (share < 1)
    tenth = np.minimum((share[at] * BINS).astype(int), BINS - 1)
    sums = [np.bincount(tenth, w, BINS).tolist() for w in (np.ones(at.sum()), share[at], true[at])]
    return [list(column) for column in zip(*sums)]


def pooled(parts: Sequence[Sums]) -> np.ndarray:
    """(BINS, 3) over all parts: voxels, mean share, share that is true."""
    total = np.sum(parts, axis=0)
    return np.column_stack([total[:, 0], total[:, 1:] / np.maximum(total[:, :1], 1)])


def worst_tenth(v: np.ndarray) -> float:
    """Of a pooled table: how far mean share and truth lie apart at most."""
    return round(float(np.abs(v[:, 1] - v[:, 2])[v[:, 0] > 0].max()), 4)


def table(core: np.ndarray, whole: np.ndarray) -> list[str]:
    """Lines of a page, from pooled tables of both maps."""
    lines = [
        "| share | core: voxels | mean share | true | whole: voxels | mean share | true |",
        "|---" * 7 + "|",
    ]
    for k in range(BINS):
        cells = [f"{v[k, 0]:.0f} | {v[k, 1]:.3f} | {v[k, 2]:.3f}" for v in (core, whole)]
        lines.append(f"| {k / BINS:.1f} to {(k + 1) / BINS:.1f} | " + " | ".join(cells) + " |")
    return lines
