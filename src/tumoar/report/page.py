"""Render the report from its data, and read the data back."""

from __future__ import annotations

import gzip
import json
import re
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tumoar.io.files import read_text
from tumoar.report.content import FORMAT
from tumoar.report.lines import OF_TARGETS, STYLES
from tumoar.report.notes import arrange_notes
from tumoar.report.pictures import COLORS
from tumoar.report.plots import Line, Mark, Span, plot
from tumoar.report.schema import find_fault
from tumoar.vocabulary.errors import UnreadableFileError
from tumoar.vocabulary.notes import Note

if TYPE_CHECKING:
    from jinja2 import Environment

RANKS = {"result": "whole result", "structure": "structure", "image": "image", "info": "for information"}
"""What the page calls the ranks of notes."""
VIEWER = "niivue-0.69.0.umd.js.gz"
MOST_PAGE = 256 * 1024**2
"""Bytes; pages stay below 25 MB."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def environment() -> Environment:
    """Jinja environment that escapes all values and refuses missing ones."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tumoar.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(data: dict[str, Any]) -> str:
    """Render one self-contained HTML page, which includes its data."""
    from markupsafe import Markup

    viewer = gzip.decompress(files("tumoar").joinpath("data", "vendor", VIEWER).read_bytes()).decode()
    # Inside a script, "<" could start its closing tag.
    packed = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    plots = {
        "intensity": [Markup(_intensity(row)) for row in data["intensity"]],
        "objective": Markup(_objective(data["convergence"])),
        "chains": Markup(_chains(data["convergence"])),
        "dose": Markup(_dose(data["dose"])),
    }
    page = environment().get_template("page.html")
    return page.render(
        d=data,
        notes=arrange_notes(Note.from_dict(row) for row in data["notes"]),
        first=_first_shown(data),
        ranks=RANKS,
        styles=STYLES,
        targets_style=OF_TARGETS,
        colors=COLORS,
        plots=plots,
        data=Markup(packed),
        viewer=Markup(viewer),
    )


def _first_shown(data: dict[str, Any]) -> int:
    """Position of the contrast that the viewer opens on: T1c, if there is one."""
    names = [contrast["name"] for contrast in data["contrasts"]]
    return names.index(data["shown_first"]) if data.get("shown_first") in names else 0


def read_data(html: str) -> dict[str, Any]:
    """Read the data of a page; damaged data are refused."""
    found = _DATA.search(html)
    if found is None:
        raise UnreadableFileError(
            "report",
            "this page is not a report: it contains no data",
            do="segment again, or restore the page",
        )
    try:
        data = json.loads(found[1], parse_constant=_no_number)
        if _SURROGATE.search(found[1]):
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:  # a UnicodeEncodeError is a ValueError
        raise _damaged("not valid JSON") from error
    if not isinstance(data, dict):
        raise _damaged("not a table")
    if data.get("format") != FORMAT:
        raise UnreadableFileError(
            "report",
            "the report's data have another format",
            found=data["format"] if isinstance(data.get("format"), int) else "no number",
            do=f"use the version of tumoar that wrote it, or segment again (this one reads {FORMAT})",
        )
    why = find_fault(data)
    if why is not None:
        raise _damaged(why)
    return data


def read_page(path: Path) -> dict[str, Any]:
    """Read the data of a page on disk."""
    return read_data(read_text(path, "the report", MOST_PAGE))


def _damaged(found: str) -> UnreadableFileError:
    return UnreadableFileError(
        "report", "the report's data are damaged", found=found, do="segment again, or restore the page"
    )


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _intensity(row: dict[str, Any]) -> str:
    """Plot of histogram, mixtures, their sum, and the bounds on means."""
    low, high = row["edges"]
    density = np.array(row["density"])
    edges = np.linspace(low, high, len(density) + 1)
    x = np.linspace(low, high, 300)
    lines = [Line(np.repeat(edges, 2)[1:-1], np.repeat(density, 2), kind="bars")]
    total = np.zeros_like(x)
    for (name, color), group in groupby(row["components"], key=lambda c: (c["mixture"], c["color"])):
        curves = [_normal(x, **{k: c[k] for k in ("weight", "mean", "sd")}) for c in group]
        total += np.sum(curves, 0)
        lines.append(Line(x, np.sum(curves, 0), color, "fill", name))
        if len(curves) > 1:
            lines += [Line(x, curve, color, "thin") for curve in curves]
    lines.append(Line(x, total, kind="total"))
    marks = [
        Mark(
            c["bound"], c["color"], 1 if c["op"] == "≥" else -1, f"{c['mixture']} {c['op']} {c['bound']:.2f}"
        )
        for c in row["constraints"]
    ]
    top = 1.15 * max(float(density.max()), float(total.max()), 1e-9)
    return plot(lines, x=row["unit"], y="density", marks=marks, y_range=(0, top))


def _normal(x: np.ndarray, weight: float, mean: float, sd: float) -> np.ndarray:
    curve: np.ndarray = weight / (sd * np.sqrt(2 * np.pi)) * np.exp(-0.5 * ((x - mean) / sd) ** 2)
    return curve


def _objective(convergence: dict[str, Any]) -> str:
    """Plot per level: objectives on different voxels are not comparable; the steep start is cut off."""
    steps = convergence["objective"]
    values = np.array([s["value"] for s in steps])
    lines, spans, start = [], [], 0
    for level, group in groupby(steps, key=lambda s: s["level"]):
        stop = start + len(list(group))
        lines.append(Line(np.arange(start, stop, dtype=float), values[start:stop]))
        shaded_to = stop - 1 if level % 2 == 0 else start
        spans.append(Span(start, shaded_to, f"level {level + 1}"))
        start = stop
    low, high = float(np.percentile(values, 10)), float(values.max())
    height = max(high - low, 1e-6)
    y_range = (low - 0.05 * height, high + 0.15 * height)
    return plot(lines, x="step", y="nats per voxel", spans=spans, y_range=y_range)


def _chains(convergence: dict[str, Any]) -> str:
    lines = [
        Line(chain["sweep"], chain[name], color)
        for chain in convergence["chains"]
        for name, color in (("GTV", "var(--gtv)"), ("whole tumor", "var(--whole)"))
    ]
    if not lines:
        return ""
    burn_in = convergence["burn_in"]
    spans = [Span(0, burn_in, "burn-in")] if burn_in else []
    top = 1.08 * max(max(line.y) for line in lines)
    return plot(lines, x="sweep", y="cm³", spans=spans, y_range=(0, max(top, 0.1)))


def _dose(curves: list[dict[str, Any]]) -> str:
    if not curves:
        return ""
    lines = []
    for c in curves:
        if "low" in c and "high" in c:
            lines.append(
                Line([*c["dose"], *c["dose"][::-1]], [*c["low"], *c["high"][::-1]], c["color"], "band")
            )
        lines.append(Line(c["dose"], c["volume"], c["color"], OF_TARGETS.get(c["name"], "line")))
    return plot(lines, x="dose, Gy", y="volume, %", y_range=(0, 102))
