"""The whole model of a patient's head: where structures lie, what shapes tumors take (section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tumoar.config import Config
from tumoar.labels import LabelTable
from tumoar.model.atlas import Atlas
from tumoar.model.shape.base import ShapePrior
from tumoar.model.shape.crbm import CRBM
from tumoar.model.shape.mrf import FirstOrderMRF


@dataclass(frozen=True)
class Model:
    """An atlas, priors on the shape of tumor z and core y, and what to expect of a tumor's volume.

    `tumor_mm3` are mean volumes of "core" and "edema" (method: they set the strength of the priors on
    intensities); `sha256` names the files it was read from.
    """

    atlas: Atlas
    shape_z: ShapePrior
    shape_y: ShapePrior
    tumor_mm3: Mapping[str, float]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.tumor_mm3) != {"core", "edema"} or not all(v > 0 for v in self.tumor_mm3.values()):
            raise ValueError(f"tumor_mm3 must be positive for core and edema, got {dict(self.tumor_mm3)}")

    @property
    def labels(self) -> LabelTable:
        """The structures of the atlas."""
        return self.atlas.labels


def with_prior(model: Model, config: Config) -> Model:
    """The model with the shape prior that the settings ask for."""
    if config.prior == "crbm":
        y = model.shape_y
        return replace(model, shape_y=replace(y, a=y.a + config.level_y)) if isinstance(y, CRBM) else model
    return replace(model, shape_z=FirstOrderMRF(config.beta_z), shape_y=FirstOrderMRF(config.beta_y))
