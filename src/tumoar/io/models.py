"""Whole models from model files: the one in the package, or any that `tumoar train combine` made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from tumoar.errors import ModelFileError
from tumoar.io.shapes import section_shape
from tumoar.io.store import Section, load_sections, section_atlas
from tumoar.model.generative import Model

SHIPPED = ("atlas.npz", "shape.npz")


def load_model(paths: Sequence[str | Path]) -> Model:
    """The model whose sections lie in these files; checked, or refused."""
    sections: dict[str, Section] = {}
    digests = {}
    for path in map(Path, paths):
        sections |= load_sections(path)
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    last = paths[-1]
    z, y = (section_shape(sections, name, last) for name in ("shape_z", "shape_y"))
    try:
        volumes = sections["shape_z"].card["provenance"]["mean_mm3"]
        expected = {part: float(volumes[part]) for part in ("core", "edema")}
        return Model(section_atlas(sections, paths[0]), z, y, expected, digests)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError("B54", "model file not usable: no mean volumes in it", file=last) from error


@cache
def default_model() -> Model:
    """The model inside the package."""
    folder = files("tumoar").joinpath("data")
    with as_file(folder.joinpath(SHIPPED[0])) as atlas, as_file(folder.joinpath(SHIPPED[1])) as shape:
        return load_model([atlas, shape])
