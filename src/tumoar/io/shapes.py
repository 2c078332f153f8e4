"""Shape priors as sections of a model file: `shape_z` for the tumor map, `shape_y` for the core map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tumoar.io.store import Section
from tumoar.model.shape.crbm import CRBM
from tumoar.numerics.convolve import M, R
from tumoar.vocabulary.errors import ModelFileError

_MOST_W, _MOST_B, _MOST_A = 50.0, 1e3, 1e4  # trained filters stay below 1, biases below 20
_MOST_TAPS = M * R**3  # limit of the kernels; more would take days per head
_FORM = {"kind": "cRBM", "orientation": "correlation", "tied": 2, "voxel_mm": 1.0}


def shape_section(model: CRBM, provenance: Mapping[str, Any]) -> Section:
    """Section of a cRBM; `provenance` describes its training data and settings."""
    return Section({"w": model.w, "b": model.b}, {**_FORM, "a": model.a, "provenance": dict(provenance)})


def section_shape(sections: Mapping[str, Section], name: str, path: str | Path) -> CRBM:
    """cRBM from a loaded section; `path` is named in refusals."""
    try:
        arrays, card = sections[name].arrays, sections[name].card
        if any(card[key] != value for key, value in _FORM.items()):
            raise ValueError("of another kind")
        model = CRBM(arrays["w"], arrays["b"], card["a"])
        if not 0 < model.w.size <= _MOST_TAPS:
            raise ValueError(f"filters of {'x'.join(map(str, model.w.shape))}, at most {M} of {R}³ taps")
        for part, most in ((model.w, _MOST_W), (model.b, _MOST_B), (model.a, _MOST_A)):
            if np.abs(part).max() > most:
                raise ValueError(f"weights up to {np.abs(part).max():.3g}, at most {most:g}")
        return model
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ModelFileError("B54", f"model file not usable: {name}: {error}", file=path) from error
