"""Sample tumor again in a box, everything else held at the state of the chain.

The box has a margin in which labels are read but not drawn, as wide as the filters of the shape priors reach.
Voxels in the box are therefore drawn from their conditional distribution given everything outside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.inference import gibbs
from tumoar.inference.fixed import apply_fixed
from tumoar.model import joint
from tumoar.model.bias import cosines
from tumoar.model.cavity import find_odds
from tumoar.model.joint import Labels
from tumoar.model.shape.crbm import CRBM
from tumoar.model.theta_prior import ThetaPrior
from tumoar.numerics import voxels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import UNUSED, Volume
from tumoar.result.state import Box, State
from tumoar.review.allowed import CAVITY, Held, States, hold
from tumoar.review.strokes import Mask

Field = npt.NDArray[np.float32]

BURN_IN, SAMPLES = 12, 24
"""Sweeps before samples are counted, and samples."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Data and prior in a box of a state with its margin; tumor is possible in `region`."""

    box: Box
    volume: Volume
    pi: Field
    region: Mask


@dataclass(frozen=True, eq=False)
class Sampled:
    """Votes out of `samples` in the box of a scene, and labels of the last sweep."""

    z: npt.NDArray[np.uint8]
    y: npt.NDArray[np.uint8]
    cavity: npt.NDArray[np.uint8]
    volumes: npt.NDArray[np.int64]  # (samples, 3) voxels of edema, core and cavity in the region
    labels: Labels

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.volumes)


def build_scene(state: State, box: Box) -> Scene:
    """Cut a box with its margin out of a state."""
    reach = max((s.reach if isinstance(s, CRBM) else 1) for s in state.shapes)
    i, j, k = (
        slice(max(0, s.start - reach), min(n, s.stop + reach))
        for s, n in zip(box, state.use.shape, strict=True)
    )
    wide = (i, j, k)
    use = np.ascontiguousarray(state.use[wide])
    a, b, c = (
        cosines(n)[f + s.start : f + s.stop] for n, f, s in zip(state.shape, state.first, wide, strict=True)
    )
    volume = voxels.build_volume(np.ascontiguousarray(state.D[(slice(None), *wide)]), use, (a, b, c))
    atlas = state.placed.atlas
    nodes = state.nodes - [i.start, j.start, k.start]
    x, y, z = use.shape
    pi = rasterize(nodes, state.placed.tetrahedra, atlas.alpha, (x, y, z), atlas.background)
    inner = np.zeros(use.shape, bool)
    inner[tuple(slice(s.start - w.start, s.stop - w.start) for s, w in zip(box, wide, strict=True))] = True
    brain = pi[..., atlas.labels.in_brain].sum(-1)
    return Scene(wide, volume, pi, inner & (use != UNUSED) & (brain > 0))


def weigh_classes(scene: Scene, state: State) -> tuple[Field, Field, Field]:
    """Log of p(d) if normal, edema and core, relative to the background's, each (x, y, z)."""
    table = state.placed.atlas.labels
    columns = joint.assign_columns(table)
    groups = joint.compile_groups(table, columns, tumor_columns=True)
    C = int(columns.max()) + 1
    L = np.empty((*scene.region.shape, C + 2), np.float32)
    background = int(columns[state.placed.atlas.background])
    joint.class_likelihoods(scene.volume, groups, state.theta, L, background, state.tau)
    merged = np.zeros((*scene.region.shape, C), np.float32)
    for l, column in enumerate(columns):
        if l != table.cavity:
            merged[..., column] += scene.pi[..., l]
    least = np.float32(1e-30)
    brain = np.maximum(scene.pi[..., table.in_brain].sum(-1), least)
    normal = np.log(np.maximum((merged * L[..., :C]).sum(-1), least))
    edema, core = (np.log(np.maximum(brain * L[..., C + n], least)) for n in (0, 1))
    return normal, edema, core


def sample_region(
    scene: Scene,
    state: State,
    allowed: States,
    evidence: tuple[Field, Field],
    seed: int,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> Sampled:
    """Sample z and y in the region of a scene, given states that are `allowed` and additional log-odds."""
    table, box = state.placed.atlas.labels, scene.box
    before = Labels(*(np.ascontiguousarray(getattr(state.labels, n)[box]) for n in "lzy"))
    is_cavity = before.l == table.cavity if table.cavity is not None else np.zeros(before.l.shape, bool)
    z, y = hold(allowed, before.z + before.y, is_cavity)
    for mine, given in ((z, state.fixed_z), (y, state.fixed_y)):
        if given is not None:
            mine[mine < 0] = given[box][mine < 0]
    location = np.ascontiguousarray(state.log_factor[box])
    pi = scene.pi
    if table.cavity is not None:
        pi = _with_cavity(pi, allowed, find_odds(state.fillings[box], np.exp(location)), table.cavity)
    e_z, e_y = evidence
    chain = gibbs.Chain(
        table,
        scene.volume,
        joint.pack_prior(scene.volume, pi),
        _NO_PRIOR,
        *state.shapes,
        scene.region,
        seed,
        np.where(scene.region, z, np.int8(-1)),
        np.where(scene.region, y, np.int8(-1)),
        tau=state.tau,
        location=location + e_z,
        location_y=e_y,
    )
    labels = _start(before, scene.region, evidence, z, y, chain)
    rows = np.asarray(scene.region.any(2))
    votes = np.zeros((3, *before.l.shape), np.uint8)
    volumes = []
    for number in range(1, BURN_IN + SAMPLES + 1):
        rng = np.random.default_rng([seed, number])
        labels, _ = gibbs.draw_labels(chain, state.theta, labels, chain.everywhere, number, rng, rows=rows)
        if number > BURN_IN:
            cavity = (labels.l == table.cavity) if table.cavity is not None else np.zeros_like(scene.region)
            for vote, mask in zip(votes, (labels.z, labels.y, cavity), strict=True):
                vote += mask.astype(np.uint8)
            inside = scene.region
            core, removed = int(labels.y[inside].sum()), int(cavity[inside].sum())
            volumes.append((int(labels.z[inside].sum()) - core, core - removed, removed))
        step(number, BURN_IN + SAMPLES)
    return Sampled(votes[0], votes[1], votes[2], np.array(volumes, np.int64), labels)


_NO_PRIOR: ThetaPrior = None  # type: ignore[assignment]  # θ is held


def _with_cavity(pi: Field, allowed: States, odds: Field, cavity: int) -> Field:
    """π for the sampler, where a cavity has its odds, is excluded or is certain."""
    out = pi.copy()
    out[..., cavity] *= odds
    out[allowed & CAVITY == 0, cavity] = 0
    only = allowed == CAVITY
    out[only] = 0
    out[only, cavity] = 1
    return out


def _start(
    before: Labels, region: Mask, evidence: tuple[Field, Field], z: Held, y: Held, chain: gibbs.Chain
) -> Labels:
    """Labels before the first sweep: those of the chain, changed where strokes or strong evidence say so."""
    e_z, e_y = evidence
    new_z, new_y = before.z.copy(), before.y.copy()
    new_y[region & (e_y > 1)], new_y[region & (e_y < -1)] = 1, 0
    new_z[region & ((e_z > 1) | (e_y > 1))] = 1
    new_z[region & (e_z < -1)] = 0
    fixed_z, fixed_y = (np.where(region, held, np.int8(-1)) for held in (z, y))
    brain = chain.labels.in_brain[before.l]
    l = np.where(
        region & ~brain & ((new_z == 1) | (z == 1)),
        np.uint8(np.flatnonzero(chain.labels.in_brain)[0]),
        before.l,
    )
    new_y *= new_z
    return apply_fixed(Labels(l, new_z, new_y), fixed_z, fixed_y, chain.labels)
