"""Escape names for plots, so that they are shown and not interpreted."""

from __future__ import annotations


def verbatim(name: str) -> str:
    """Escape a name for a tick, title or legend of matplotlib.

    Dollar signs would start a formula, and legends skip names that start with an underscore.
    """
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
