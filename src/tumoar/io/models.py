"""Load complete models: the one in the package, or files made by `tumoar train combine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from tumoar.geometry.image import Grid
from tumoar.io.shapes import section_shape
from tumoar.io.store import Section, load_hashed, section_atlas
from tumoar.model.atlas import Atlas, pi, place
from tumoar.model.deformation import cost, fit
from tumoar.model.generative import Model
from tumoar.model.location import Location
from tumoar.model.shape.crbm import CRBM
from tumoar.vocabulary.errors import ModelFileError
from tumoar.vocabulary.labels import TUMOR_STATES, default_labels
from tumoar.vocabulary.parts import brain_labels, take_colors

SHIPPED = {
    "default": ("atlas.npz", "shape.npz", "location.npz"),
    "brain": ("brain.npz", "shape.npz", "location.npz"),
}
"""Files of the models in the package, by name; the first has the atlas."""
NEEDED = ("GWM", "GGM")
"""Mixtures to which the bounds on tumor intensity refer (data/contrasts.toml)."""
PRIORS = ("shape_z", "shape_y")
VOLUMES = (1.0, 2e6)  # mm³; a brain has 1.4 million
TRIAL = 48  # voxels along the longest side


def load_model(paths: Sequence[str | Path]) -> Model:
    """Load and check the model whose sections are in these files."""
    sections: dict[str, Section] = {}
    digests = {}
    for path in map(Path, paths):
        found, digests[path.name] = load_hashed(path)
        sections |= found
    return model_of(sections, digests, paths)


def model_of(
    sections: Mapping[str, Section], digests: Mapping[str, str], paths: Sequence[str | Path]
) -> Model:
    """Build a model from loaded sections; `paths` are named in refusals."""
    last = paths[-1]
    z, y = (section_shape(sections, name, last) for name in ("shape_z", "shape_y"))
    atlas = section_atlas(sections, paths[0])
    lacking = [name for name in NEEDED if not atlas.labels.has_gmm(name)]
    if lacking:
        raise ModelFileError(
            "B54",
            f"model file not usable: no mixture named {' or '.join(lacking)}",
            file=paths[0],
            do="name the mixtures of white and gray matter GWM and GGM: tumor is compared with them",
        )
    location = section_location(sections["location"], last) if "location" in sections else None
    return Model(atlas, z, y, _volumes(sections["shape_z"], last), digests, location)


def section_location(section: Section, path: str | Path) -> Location:
    """Read where tumors occur."""
    try:
        return Location(section.arrays["frequency"], section.arrays["affine"])
    except (KeyError, ValueError) as error:
        raise ModelFileError("B54", f"model file not usable: location, {error}", file=path) from error


def _volumes(section: Section, path: str | Path) -> dict[str, float]:
    """Mean volumes (mm³) of core and edema in training."""
    try:
        volumes = section.card["provenance"]["mean_mm3"]
        expected = {part: float(volumes[part]) for part in TUMOR_STATES}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError("B54", "model file not usable: no mean volumes in it", file=path) from error
    low, high = VOLUMES
    if not all(low <= v <= high for v in expected.values()):
        found = ", ".join(f"{part} {v:g} mm³" for part, v in expected.items())
        raise ModelFileError(
            "B54", "model file not usable: mean volumes out of range", file=path, found=found
        )
    return expected


# ---- does it work? -----------------------------------------------------------------------------------------


def require_working(sections: Mapping[str, Section], path: str | Path) -> list[str]:
    """Check every section by its content and a small trial; return the names of missing sections."""
    for name in sections:
        if name == "atlas":
            _try_atlas(section_atlas(sections, path), path)
        elif name in PRIORS:
            _try_prior(section_shape(sections, name, path), name, path)
        elif name == "location":
            section_location(sections[name], path)
        else:
            raise ModelFileError("B54", f"model file not usable: '{name}' is not part of a model", file=path)
    lacking = [name for name in ("atlas", *PRIORS) if name not in sections]
    if not lacking:
        model_of(sections, {}, [path])
    return lacking


@np.errstate(all="ignore")  # overflows show in the result
def _try_atlas(atlas: Atlas, path: str | Path) -> None:
    """Place the atlas, rasterize it, and deform it slightly toward random likelihoods."""
    low, high = atlas.box
    spacing = float((high - low).max()) / TRIAL
    shape = np.maximum(np.ceil((high - low) / spacing).astype(int), 2)
    affine = np.diag([spacing] * 3 + [1.0])
    affine[:3, 3] = (low + high - (shape - 1) * spacing) / 2
    placed = place(atlas, np.eye(4), Grid((int(shape[0]), int(shape[1]), int(shape[2])), affine))
    p = pi(placed, placed.reference)
    L = np.random.default_rng(0).uniform(0.5, 1.5, p.shape).astype(np.float32)
    before, slope = cost(placed, placed.reference, atlas.alpha, L)
    try:
        after = fit(placed, placed.reference, atlas.alpha, L, evaluations=4).cost
    except ValueError:  # no curvature at the start
        after = np.inf
    is_usable = np.isfinite([before, after]).all() and np.isfinite(slope).all() and after <= before
    if not (is_usable and p.min() >= 0 and np.abs(p.sum(-1) - 1).max() < 1e-3):
        raise ModelFileError("B54", "model file not usable: the atlas cannot be fitted", file=path)


def _try_prior(prior: CRBM, name: str, path: str | Path) -> None:
    """Compute the field around a small ball."""
    ball = np.linalg.norm(np.indices((9, 9, 9)) - 4.0, axis=0) < 3
    found = prior.field(ball, np.ones_like(ball), 0)
    if not (np.isfinite(found).all() and np.isfinite(prior.free_energy_rise(ball))):
        raise ModelFileError("B54", f"model file not usable: {name} gives no finite numbers", file=path)


def default_model() -> Model:
    """The first model inside the package."""
    return shipped_model("default")


@cache
def shipped_model(name: str) -> Model:
    """A model inside the package, in the colors of its table in data/, which no training determines."""
    folder = files("tumoar").joinpath("data")
    with ExitStack() as stack:
        model = load_model([stack.enter_context(as_file(folder.joinpath(n))) for n in SHIPPED[name]])
    table = {"default": default_labels, "brain": brain_labels}[name]()
    return replace(model, atlas=replace(model.atlas, labels=take_colors(model.atlas.labels, table)))


def find_model(model: str | Path | None) -> Model:
    """The model of a file, or one in the package by its name; the default one without either."""
    name = "default" if model is None else str(model)
    return shipped_model(name) if name in SHIPPED else load_model([name])
