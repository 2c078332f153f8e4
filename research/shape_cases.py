"""Shapes and shape models that the experiments on shape priors share."""

from __future__ import annotations

import os
from pathlib import Path

from tumoar.cli.train_shape import read_shapes
from tumoar.io.shapes import section_shape
from tumoar.io.store import load_sections

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
MODEL = PROJECT / "src" / "tumoar" / "data" / "shape.npz"


def load_models(path: Path):
    """cRBMs and provenances of a model file, by map."""
    sections = load_sections(path)
    models = {
        name: section_shape(sections, f"shape_{name}", path) for name in "zy" if f"shape_{name}" in sections
    }
    return models, {name: sections[f"shape_{name}"].card["provenance"] for name in models}


def shapes_of(name: str, provenance):
    """Training and held-out shapes of a model, as its card lists them."""
    paths = sorted((DATA / "tumors" / "automatic").glob("*.nii.gz"))
    by_name = {s.name: s for s in read_shapes(paths, [2, 3])[name]}
    return tuple([by_name[n] for n in provenance[key] if n in by_name] for key in ("subjects", "held_out"))
