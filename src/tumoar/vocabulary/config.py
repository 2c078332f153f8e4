"""Settings of the algorithms, the paper's values by default; a setting that does not exist is an error."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

# A text or a truth value is no number.
Number: TypeAlias = StrictFloat
Count: TypeAlias = StrictInt
MOST = 10_000
"""Iterations, steps or sweeps beyond which nobody would wait."""


class Settings(BaseModel):
    """Frozen, closed to unknown names, and every number finite and within bounds that make sense."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Level(Settings):
    """One resolution of the initial algorithm."""

    spacing: Number = Field(ge=1, le=5)  # mm; the images are brought to 1 mm
    smoothing: Number = Field(ge=0, le=10)  # mm, standard deviation of the Gaussian that blurs the atlas


class GemConfig(Settings):
    """Algorithm 2; what the paper does not print is from the code of Puonti et al. 2016, which it follows."""

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


class GibbsConfig(Settings):
    """Algorithm 1."""

    burn_in: Count = Field(200, ge=0, le=MOST)  # section 3.3
    samples: Count = Field(50, ge=1, le=255)  # section 3.3; votes are counted in bytes
    # In the paper every sweep considers tumor in the whole brain. With n > 1 only every n-th does; the others
    # leave alone what is 5 mm from any voxel that had a probability of tumor above 1e-5 in the last full one.
    full_every: Count = Field(10, ge=1, le=MOST)
    # Between those sweeps, voxels in rows without any considered tumor are drawn in every n-th sweep of the
    # burn-in, and held at their l and t in the others (decision 0031). 1: in each of them.
    rest_every: Count = Field(10, ge=1, le=MOST)
    # Power on the likelihood: neighbors whose noise is alike tell the same thing twice. "images": the power
    # that they ask for (decision 0034), 1 where noise is independent; 1.0: as in the paper.
    tau: Annotated[Number, Field(ge=1e-3, le=1)] | Literal["images"] = "images"


class Soft(Settings):
    """A cRBM with all its numbers times `strength`, and nats added to two kinds of biases.

    `level` is added to the visible one, `surface` to those of hidden units that answer to a surface: the
    lower, the more tension.
    """

    strength: Number = Field(ge=1e-3, le=1)
    level: Number = Field(ge=-100, le=100)
    surface: Number = Field(0.0, ge=-100, le=100)


class Config(Settings):
    """Everything a segmentation can be told; the resolved values are stored with its result."""

    gem: GemConfig = GemConfig()
    gibbs: GibbsConfig = GibbsConfig()
    chains: Count = Field(1, ge=1, le=16)
    tumor: StrictBool = True  # False: organs alone
    least_tumor: Number = Field(0.1, ge=0, le=2000)  # cm³: voted tumor in smaller parts is left out
    # Voted tumor in parts without that much core is left out as well if smaller than this share of the
    # largest part: such parts hold 0.4 % of what 191 tumors have (decision 0033).
    least_share: Number = Field(0.2, ge=0, le=1)
    prior: Literal["crbm", "mrf"] = "crbm"
    # Nats added to the visible bias of core's cRBM: three Gaussians take too much of what is partly edema,
    # which has one (decision 0010).
    level_y: Number = Field(-0.5, ge=-100, le=100)
    # The cRBMs where noise is independent from voxel to voxel; the more neighbors repeat each other, the more
    # they are as training gave them (decision 0010).
    soft_z: Soft = Soft(strength=0.75, level=0.0, surface=-0.2)
    soft_y: Soft = Soft(strength=0.8, level=0.15, surface=-0.25)
    beta_z: Number = Field(0.6, ge=0, le=10)  # of the first-order Markov random field, if that is the prior
    beta_y: Number = Field(0.6, ge=0, le=10)

    @model_validator(mode="after")
    def _can_be_counted(self) -> Self:
        if self.chains * self.gibbs.samples > 255:
            raise ValueError("chains times samples must not exceed 255: votes are counted in bytes")
        return self


FAST = Config(gibbs=GibbsConfig(burn_in=40, samples=30, full_every=10))
"""For a first look: fewer sweeps, most of them near the tumor alone."""
