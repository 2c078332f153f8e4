"""The generative model: atlas, tumor shape priors and expected tumor volumes (section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tumoar.model.atlas import Atlas, join, spread_untrained
from tumoar.model.location import Location
from tumoar.model.shape.base import ShapePrior
from tumoar.model.shape.crbm import CRBM, soften
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.vocabulary.config import Config, Soft
from tumoar.vocabulary.labels import TUMOR_STATES, LabelTable

FULL = 0.65
"""Likelihood exponent τ (decision 0034) at and below which shape priors are used as trained."""
DEEP_GRAY, GRAY = "deep gray matter", "gray matter"
UNSPECIFIED = 0.01
"""Probability of unspecified tissue that section 3.1 adds at each node."""


@dataclass(frozen=True)
class Model:
    """An atlas, shape priors of tumor z and core y, and expected tumor volumes.

    `tumor_mm3` are mean volumes of "core" and "edema"; they set the strength of the priors on intensities.
    `location` tells where tumors occur, if known. `sha256` identifies the files the model was read from.
    """

    atlas: Atlas
    shape_z: ShapePrior
    shape_y: ShapePrior
    tumor_mm3: Mapping[str, float]
    sha256: Mapping[str, str] = field(default_factory=dict)
    location: Location | None = None

    def __post_init__(self) -> None:
        if set(self.tumor_mm3) != set(TUMOR_STATES) or not all(v > 0 for v in self.tumor_mm3.values()):
            raise ValueError(f"tumor_mm3 must be positive for core and edema, got {dict(self.tumor_mm3)}")

    @property
    def labels(self) -> LabelTable:
        """The structures of the atlas."""
        return self.atlas.labels


def select_prior(model: Model, config: Config) -> Model:
    """Set the shape priors according to the settings."""
    if config.prior == "crbm":
        y = model.shape_y
        return replace(model, shape_y=replace(y, a=y.a + config.level_y)) if isinstance(y, CRBM) else model
    z = FirstOrderMRF(config.beta_z, config.mrf_level_z)
    return replace(model, shape_z=z, shape_y=FirstOrderMRF(config.beta_y, config.mrf_level_y))


def select_atlas(model: Model, config: Config) -> Model:
    """Set structures, unspecified tissue and prior scatter of the atlas according to the settings."""
    atlas = model.atlas
    if not config.deep_gray and atlas.labels.parts(DEEP_GRAY):
        atlas = _without_deep_gray(atlas)
    if config.unspecified == "everywhere":
        atlas = spread_untrained(atlas, UNSPECIFIED)
    if config.scatter != "mixtures":
        gmms = tuple(replace(g, scatter=g.scatter or config.scatter) for g in atlas.labels.gmms)
        atlas = replace(atlas, labels=replace(atlas.labels, gmms=gmms))
    return model if atlas is model.atlas else replace(model, atlas=atlas)


def _without_deep_gray(atlas: Atlas) -> Atlas:
    """Deep gray matter as part of gray matter; where the atlas has its parts, they get that mixture."""
    labels = atlas.labels
    if any(s.name == DEEP_GRAY for s in labels.structures):
        return join(atlas, DEEP_GRAY, GRAY)
    gray = labels.structures[labels.parts(GRAY)[0]].gmm
    deep = {labels.structures[l].gmm for l in labels.parts(DEEP_GRAY)}
    structures = tuple(replace(s, gmm=gray) if s.gmm in deep else s for s in labels.structures)
    gmms = tuple(g for g in labels.gmms if g.name not in deep)
    return replace(atlas, labels=replace(labels, structures=structures, gmms=gmms))


def temper_priors(
    shapes: tuple[ShapePrior, ShapePrior], config: Config, tau: float
) -> tuple[ShapePrior, ShapePrior]:
    """Soften the shape priors of z and y for the estimated likelihood exponent `tau` (decision 0010).

    Softest if noise is independent (`tau` 1); unchanged at `FULL` and below.
    """
    share = max(0.0, (tau - FULL) / (1 - FULL))
    z, y = (_temper(v, soft, share) for v, soft in zip(shapes, (config.soft_z, config.soft_y)))
    return z, y


def _temper(prior: ShapePrior, soft: Soft, share: float) -> ShapePrior:
    if not isinstance(prior, CRBM):
        return prior
    return soften(prior, 1 - share * (1 - soft.strength), share * soft.level, share * soft.surface)
