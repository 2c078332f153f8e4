"""The page of a cohort: states, volumes side by side, and a picture of every subject."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

import numpy as np

from tumoar.report.page import environment, read_data
from tumoar.vocabulary.contrasts import default_contrasts, rank
from tumoar.vocabulary.errors import UnreadableFileError

HEIGHT = 132
"""Height of a thumbnail in pixels; doubled for high-resolution screens."""
QUALITY = 78
LARGEST = 8192
"""Maximum side of a picture in pixels."""
MOST = 100
"""Maximum number of pictures read from a report."""
_WIDTH, _ROW, _LEFT, _RIGHT = 560, 34, 8, 8


def thumbnails(page: str) -> list[dict[str, str]]:
    """Small pictures in three planes from a subject's report, of the most informative contrast."""
    try:
        data = read_data(page)
        pictures = data["pictures"]
        names = [str(p["contrast"]) for p in pictures]
        if not names:
            return []
        chosen = data.get("shown_first")
        if chosen not in names:  # a page of an earlier version
            known = default_contrasts()
            chosen = min(names, key=lambda n: rank(known[n].picture_rank if n in known else None))
        return [
            {"plane": str(p["plane"]), "contrast": chosen, "jpeg": _small(p["png"])}
            for p in pictures[:MOST]
            if p["contrast"] == chosen
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, SyntaxError) as error:
        raise UnreadableFileError("report", "the pictures of this report cannot be read") from error


def render_group(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], version: str) -> str:
    """Render one self-contained HTML page that links only to the reports next to it."""
    from markupsafe import Markup

    organs = list(dict.fromkeys(name for row in rows for name in row["volumes"]))
    boxes = [{"name": name, **_box(name, rows)} for name in organs]
    done = [row for row in rows if row["state"] == "done"]
    return (
        environment()
        .get_template("group.html")
        .render(
            rows=rows,
            done=done,
            others=[row for row in rows if row["state"] != "done"],
            counts=counts,
            review=sum(row["status"] != "OK" for row in done),
            unusual=sum(bool(row["unusual"]) for row in done),
            boxes=[box | {"svg": Markup(box["svg"])} for box in boxes],
            version=version,
        )
    )


def _box(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Box plot with whiskers at 1.5 times the interquartile range; every subject is a linked dot."""
    have = [(row, float(row["volumes"][name]["outlined_cm3"])) for row in rows if name in row["volumes"]]
    values = np.array([value for _, value in have])
    low, middle, high = np.percentile(values, [25, 50, 75])
    inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
    start, stop = min(0.0, float(values.min())), max(float(values.max()), 1e-9)

    def px(value: float) -> float:
        return _LEFT + (value - start) / (stop - start) * (_WIDTH - _LEFT - _RIGHT)

    y = _ROW / 2
    parts = [
        f'<svg class="box" viewBox="0 0 {_WIDTH} {_ROW}" role="img" aria-label="volumes of {escape(name)}">',
        f'<line class="axis" x1="{px(inside.min()):.1f}" x2="{px(inside.max()):.1f}" y1="{y}" y2="{y}"/>',
        f'<rect x="{px(low):.1f}" y="{y - 9}" width="{max(px(high) - px(low), 1):.1f}" height="18"/>',
        f'<line class="middle" x1="{px(middle):.1f}" x2="{px(middle):.1f}" y1="{y - 9}" y2="{y + 9}"/>',
    ]
    for number, (row, value) in enumerate(have):
        odd = any(item["name"] == name for item in row["unusual"])
        shift = 6 * ((number * 0.618034) % 1 - 0.5)  # jitter, reproducible
        parts.append(
            f'<a href="#{escape(row["name"])}"><circle class="{"odd" if odd else ""}" cx="{px(value):.1f}" '
            f'cy="{y + shift:.1f}" r="3"/><title>{escape(row["name"])}: {value:.2f} cm³</title></a>'
        )
    return {
        "svg": "".join([*parts, "</svg>"]),
        "median": float(middle),
        "low": float(values.min()),
        "high": float(values.max()),
    }


def _small(png: str) -> str:
    from PIL import Image

    try:
        packed = Image.open(BytesIO(b64decode(png)), formats=["PNG"])
    except Image.DecompressionBombError as error:
        raise ValueError("picture too large") from error
    if max(packed.size) > LARGEST:  # before decompression
        raise ValueError("picture too large")
    picture = packed.convert("RGB")
    height = 2 * HEIGHT
    if picture.height > height:
        width = max(1, round(picture.width * height / picture.height))
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    out = BytesIO()
    picture.save(out, "JPEG", quality=QUALITY)
    return b64encode(out.getvalue()).decode("ascii")
