"""Settings of the algorithms; unknown settings are rejected."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

# Strict: strings and booleans are not numbers.
Number: TypeAlias = StrictFloat
Count: TypeAlias = StrictInt
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
    # Within so many mm the prior of tumor follows the posterior (inference/tumor_prior.py). 0: w everywhere,
    # as in the paper.
    locality: Number = Field(5.0, ge=0, le=50)
    # Factor on the prior of tumor, in both algorithms, where the brain is as bright as on the other side
    # (inference/asymmetry.py). 1: none, as in the paper.
    symmetry: Number = Field(0.1, gt=0, le=1)
    # Weight of the bending energy of bias fields, per voxel, in both algorithms. 0: flat, as in the paper.
    bending: Number = Field(0.02, ge=0, le=1000)
    # Means of tumor at the start: offsets that patients have shown, or the distances of the paper's Table 4.
    start: Literal["learned", "paper"] = "learned"


class GibbsConfig(Settings):
    """Algorithm 1."""

    burn_in: Count = Field(200, ge=0, le=MOST)  # section 3.3
    samples: Count = Field(50, ge=1, le=255)  # section 3.3; votes are counted in bytes
    # In the paper every sweep draws tumor in the whole brain. With n > 1 only every n-th does; the others
    # draw it within 5 mm of voxels whose probability of tumor exceeded 1e-5 in the last full sweep.
    full_every: Count = Field(10, ge=1, le=MOST)
    # During the burn-in, rows outside that region are drawn in every n-th sweep between full ones, and keep
    # their l and t in the others (decision 0031). 1: drawn in every sweep.
    rest_every: Count = Field(10, ge=1, le=MOST)
    # Likelihood exponent. "images": estimated from noise correlation (decision 0034), 1 if noise is
    # independent; 1.0: as in the paper.
    tau: Annotated[Number, Field(ge=1e-3, le=1)] | Literal["images"] = "images"
    # Every n-th sweep also draws the node positions of the atlas (decision 0037). 0: they stay at their
    # estimate, as in the paper.
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
    beta_z: Number = Field(0.6, ge=0, le=10)  # of the first-order MRF, if that is the prior
    beta_y: Number = Field(0.6, ge=0, le=10)

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.chains * self.gibbs.samples > 255:
            raise ValueError("chains times samples must not exceed 255: votes are counted in bytes")
        return self


FAST = Config(gibbs=GibbsConfig(burn_in=40, samples=30, full_every=10))
"""Settings for a quick preview: fewer sweeps, most of them only near the tumor."""
