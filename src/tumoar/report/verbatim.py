"""Names as text of a plot: whatever they hold, it is shown and not interpreted."""

from __future__ import annotations


def verbatim(name: str) -> str:
    """A name for a tick, a title or a legend of matplotlib.

    Dollar signs would begin a formula, and a legend leaves out what begins with an underscore.
    """
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
