"""Colors of outlines, told apart with deuteranopia and protanopia where structures touch.

The eight colors are those of Okabe and Ito, "Color Universal Design" (2008). Left and right organs have one
color: their sides differ on the screen. The active structure is also drawn with a thicker line.
"""

from __future__ import annotations

COLORS = {
    "GTV": "#e69f00",
    "Edema": "#56b4e9",
    "Cavity": "#f0e442",
    "CTV": "#d55e00",
    "PTV": "#cc79a7",
    "Brain": "#999999",
    "Brainstem": "#009e73",
    "Hippocampus": "#cc79a7",
    "OpticChiasm": "#d55e00",
    "OpticNrv": "#f0e442",
    "Eye": "#0072b2",
}
OTHER = "#ffffff"


def color_of(structure: str, other: str = OTHER) -> str:
    """Color of a structure, by its TG-263 name without the side; `other` if it has none here."""
    return COLORS.get(structure, COLORS.get(structure.rsplit("_", 1)[0], other))
