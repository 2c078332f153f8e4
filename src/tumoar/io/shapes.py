"""Shape priors as sections of a model file: `shape_z` for the tumor map, `shape_y` for the core map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tumoar.errors import ModelFileError
from tumoar.io.store import Section
from tumoar.model.shape.crbm import CRBM

_FORM = {"kind": "cRBM", "orientation": "correlation", "tied": 2, "voxel_mm": 1.0}


def shape_section(model: CRBM, provenance: Mapping[str, Any]) -> Section:
    """A cRBM as a section; `provenance` says what it was trained on, and how."""
    return Section({"w": model.w, "b": model.b}, {**_FORM, "a": model.a, "provenance": dict(provenance)})


def section_shape(sections: Mapping[str, Section], name: str, path: str | Path) -> CRBM:
    """The cRBM of a loaded section; `path` is named if it is not usable."""
    try:
        arrays, card = sections[name].arrays, sections[name].card
        if any(card[key] != value for key, value in _FORM.items()):
            raise ValueError("of another kind")
        return CRBM(arrays["w"], arrays["b"], card["a"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError("B54", f"model file not usable: {name}: {error}", file=path) from error
