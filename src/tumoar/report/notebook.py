"""HTML of a result for notebooks: status, slices in three planes, volumes, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tumoar.report.page import environment
from tumoar.result.prediction import describe_interval
from tumoar.result.segmentation import STORED, Volume
from tumoar.vocabulary.notes import Note

SHOWN_FIRST = ("T1c", "FLAIR", "T2", "T1", "CT")
MOST_NOTES = 8

TEMPLATE = """\
<div style="max-width: 60em">
<p><b>{{ status }}</b>{% for text in stamps %} · {{ text }}{% endfor %} · {{ contrasts | join(", ") }}</p>
{% if pictures %}
<p>
{% for row in pictures %}
<img alt="{{ row.contrast }}, {{ row.plane }}" title="{{ row.contrast }}, {{ row.plane }}"
     src="data:image/png;base64,{{ row.png }}" style="height: 14em; display: inline">
{% endfor %}
</p>
{% endif %}
<table>
<tr><th>structure</th><th>outlined, cm³</th><th>interval, cm³</th><th></th></tr>
{% for name, outlined, interval, what in rows %}
<tr><td>{{ name }}</td><td>{{ outlined }}</td><td>{{ interval }}</td><td>{{ what }}</td></tr>
{% endfor %}
</table>
{% for text in notes %}
<p>{{ text }}</p>
{% endfor %}
</div>
"""


def notebook_html(
    status: str,
    stamps: Sequence[str],
    contrasts: Sequence[str],
    volumes: Mapping[str, Volume],
    notes: Sequence[Note],
    pictures: Sequence[Mapping[str, Any]],
) -> str:
    """HTML of a result with all text escaped; only the pictures of one contrast are shown."""
    names = list(dict.fromkeys(row["contrast"] for row in pictures))
    first = next((name for name in SHOWN_FIRST if name in names), names[0] if names else None)
    rows = [(name, f"{volume.outlined:.2f}", *interval_text(volume)) for name, volume in volumes.items()]
    texts = [str(note) for note in notes[:MOST_NOTES]]
    if len(notes) > MOST_NOTES:
        texts.append(f"and {len(notes) - MOST_NOTES} more notes")
    return (
        environment()
        .from_string(TEMPLATE)
        .render(
            status=status,
            stamps=stamps,
            contrasts=contrasts,
            rows=rows,
            notes=texts,
            pictures=[row for row in pictures if row["contrast"] == first],
        )
    )


def interval_text(volume: Volume) -> tuple[str, str]:
    """Interval of a volume, and what it is; empty for a margin."""
    low, high = volume.predicted.get(STORED, volume.central)
    return ("", "") if low != low else (f"{low:.2f}–{high:.2f}", describe_interval(volume.calibrated_on))
