"""Settings of the algorithms; unknown settings are rejected.

`Config()` are the defaults, `PAPER` the method of Agn et al. 2019 to the letter. docs/paper.md lists every
setting in which they differ, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

# Strict: strings and booleans are not numbers.
Number: TypeAlias = StrictFloat
Count: TypeAlias = StrictInt
VoteRule: TypeAlias = Literal["volume", "majority"]
MOST = 10_000
"""Upper bound on iterations, steps and sweeps."""


class Settings(BaseModel):
    """Base class: immutable, rejects unknown names and numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Level(Settings):
    """One resolution level of Algorithm 2."""

    spacing: Number = Field(ge=1, le=5)  # mm; images are resampled to 1 mm
    smoothing: Number = Field(ge=0, le=10)  # mm, standard deviation of the Gaussian that blurs the atlas


class GemConfig(Settings):
    """Algorithm 2; values missing in the paper follow the code of Puonti et al. 2016."""

    w: Number = Field(0.1, ge=1e-6, le=1 - 1e-6)  # fraction of the brain expected to be tumor, section 2.3.2
    u: Number = Field(0.5, ge=1e-6, le=1 - 1e-6)  # fraction of tumor expected to be core, section 2.3.2
    levels: tuple[Level, ...] = Field(
        (Level(spacing=2, smoothing=2), Level(spacing=1, smoothing=0)), min_length=1, max_length=8
    )
    outer_iterations: Count = Field(100, ge=1, le=MOST)  # per level
    em_iterations: Count = Field(100, ge=1, le=MOST)  # per outer iteration
    deformation_steps: Count = Field(20, ge=0, le=MOST)  # per outer iteration
    tolerance: Number = Field(5e-4, gt=0, le=1)  # nats per voxel, of EM and of outer iterations
    deformation_tolerance: Number = Field(1e-3, ge=0, le=10)  # voxels
    stiffness: Number = Field(0.1, ge=1e-4, le=100)  # of the mesh
    # Within so many mm the prior of tumor follows the posterior (inference/tumor_prior.py); 0: w everywhere.
    locality: Number = Field(5.0, ge=0, le=50)
    # Factor on the prior of tumor, in both algorithms, where the brain is as bright as on the other side
    # (inference/asymmetry.py); 1: none.
    symmetry: Number = Field(0.1, gt=0, le=1)
    # Factor on the prior of tumor, in both algorithms, where training had no tumor (model/location.py); 1:
    # none.
    location: Number = Field(0.2, gt=0, le=1)
    # Weight of the bending energy of bias fields, per voxel, in both algorithms; 0: a flat prior.
    bending: Number = Field(0.02, ge=0, le=1000)
    # Weight of the learned prior of tumor means (model/tumor_means.py), as a fraction of the expected voxels
    # of tumor, in both algorithms; 0: none.
    tumor_means: Number = Field(0.002, ge=0, le=1000)
    # Means at the start. "learned": tumor at offsets from white matter that patients have shown, white and
    # gray matter at their medians, chiasm like white matter; "paper": tumor at the distances of Table 4 from
    # the mean of the image, everything else at its moments under the atlas.
    start: Literal["learned", "paper"] = "learned"
    # Whether the first fit of θ has bias fields, which may absorb misalignment of the mesh.
    early_bias: StrictBool = False


class GibbsConfig(Settings):
    """Algorithm 1."""

    burn_in: Count = Field(200, ge=0, le=MOST)  # section 3.3
    samples: Count = Field(50, ge=1, le=255)  # section 3.3; votes are counted in bytes
    # Every n-th sweep draws tumor in the whole brain; the others draw it within 5 mm of voxels whose
    # probability of tumor exceeded 1e-5 in the last full sweep.
    full_every: Count = Field(10, ge=1, le=MOST)
    # During the burn-in, rows outside that region are drawn in every n-th sweep between full ones, and keep
    # their l and t in the others (decision 0031). 1: drawn in every sweep.
    rest_every: Count = Field(10, ge=1, le=MOST)
    # Likelihood exponent. "images": estimated from noise correlation (decision 0034), 1 if noise is
    # independent; 1.0: none.
    tau: Annotated[Number, Field(ge=1e-3, le=1)] | Literal["images"] = "images"
    # Core at the start. "enhancing": where T1c enhances, and what that encloses (decision 0030); "paper": the
    # most probable labels, with a random fifth of the edema turned to core.
    start: Literal["enhancing", "paper"] = "enhancing"
    # Every n-th sweep also draws the node positions of the atlas (decision 0037). 0: they stay at their
    # estimate.
    nodes_every: Count = Field(0, ge=0, le=MOST)


class Soft(Settings):
    """Softening of a cRBM: all parameters times `strength`, and nats added to two kinds of biases.

    `level` is added to the visible bias, `surface` to the biases of hidden units that respond to surfaces:
    lower values give more surface tension.
    """

    strength: Number = Field(ge=1e-3, le=1)
    level: Number = Field(ge=-100, le=100)
    surface: Number = Field(0.0, ge=-100, le=100)


class Config(Settings):
    """All settings of a segmentation; the resolved values are stored with the result."""

    gem: GemConfig = GemConfig()
    gibbs: GibbsConfig = GibbsConfig()
    chains: Count = Field(1, ge=1, le=16)
    tumor: StrictBool = True  # False: organs only
    postop: StrictBool = False  # whether the model has a resection cavity (decision 0041)
    # Whether deep gray matter is a structure with its own mixture (decision 0004), or part of gray matter.
    deep_gray: StrictBool = True
    # Whether optic nerves are tubes that run from globe to chiasm (decision 0044), where the atlas has these
    # and the nodes stay at their estimate.
    pathway: StrictBool = True
    # Nodes of the atlas where unspecified tissue, and thus tumor, is possible: those of the brain, or each.
    unspecified: Literal["brain", "everywhere"] = "brain"
    # X of the prior scatter matrices of the likelihood: the number of mixtures of the model, or a number.
    scatter: Annotated[Number, Field(ge=1, le=1000)] | Literal["mixtures"] = "mixtures"
    # Bounds on means: every row of the contrast table, or without those marked as `added` to Table 3.
    bounds: Literal["all", "paper"] = "all"
    # Outlines of organs outside the brain: their mean volume in the samples (decision 0035), or the majority
    # vote, which takes l, z and y separately.
    vote: VoteRule = "volume"
    least_tumor: Number = Field(0.1, ge=0, le=2000)  # cm³: smaller components of voted tumor are excluded
    # Components with less core than that are also excluded if smaller than this fraction of the largest
    # component: they contain 0.4 % of the volume of 191 tumors (decision 0033).
    least_share: Number = Field(0.2, ge=0, le=1)
    # The GTV: the enhancing core, the T2/FLAIR abnormality, or (auto) the latter where nothing enhances.
    gtv: Literal["auto", "enhancing", "flair"] = "auto"
    prior: Literal["crbm", "mrf"] = "crbm"
    # Nats added to the visible bias of the core cRBM: core, with three Gaussians, otherwise claims too much
    # tissue that is partly edema, which has one (decision 0010).
    level_y: Number = Field(-0.5, ge=-100, le=100)
    # Softening of the cRBMs if noise is independent between voxels; it fades as noise correlation increases
    # (decision 0010).
    soft_z: Soft = Soft(strength=0.75, level=0.0, surface=-0.2)
    soft_y: Soft = Soft(strength=0.8, level=0.15, surface=-0.25)
    # Of the first-order MRF, if that is the prior. The paper has no levels.
    beta_z: Number = Field(0.6, ge=0, le=10)
    beta_y: Number = Field(0.6, ge=0, le=10)
    mrf_level_z: Number = Field(0.0, ge=-100, le=100)
    mrf_level_y: Number = Field(0.0, ge=-100, le=100)

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.chains * self.gibbs.samples > 255:
            raise ValueError("chains times samples must not exceed 255: votes are counted in bytes")
        return self


FAST = Config(gibbs=GibbsConfig(burn_in=40, samples=30, full_every=10))
"""Settings for a quick preview: fewer sweeps, most of them only near the tumor."""

PAPER = Config(
    gem=GemConfig(
        tolerance=1e-4,
        locality=0.0,
        symmetry=1.0,
        location=1.0,
        bending=0.0,
        tumor_means=0.0,
        start="paper",
        early_bias=True,
    ),
    gibbs=GibbsConfig(full_every=1, rest_every=1, tau=1.0, start="paper"),
    deep_gray=False,
    pathway=False,
    unspecified="everywhere",
    scatter=12.0,
    bounds="paper",
    vote="majority",
    least_tumor=0.0,
    least_share=0.0,
    gtv="enhancing",
    level_y=0.0,
    soft_z=Soft(strength=1.0, level=0.0, surface=0.0),
    soft_y=Soft(strength=1.0, level=0.0, surface=0.0),
    beta_z=4.0,
    beta_y=1.0,
)
"""The method of the paper; the defaults that it keeps are the paper's as well (docs/paper.md)."""

METHODS = {"default": Config(), "paper": PAPER}
"""Settings by the name of a method."""


def find_changes(config: Config, base: Config) -> dict[str, Any]:
    """Find the settings of `config` that differ from those of `base`, by dotted name."""
    ours, theirs = (flatten(c.model_dump(mode="json")) for c in (config, base))
    return {name: value for name, value in ours.items() if value != theirs[name]}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    out: dict[str, Any] = {}
    for name, value in table.items():
        out |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out
