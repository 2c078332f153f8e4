"""Initialization: voxels to model, θ⁽⁰⁾ from the atlas, and the initial labels of the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.geometry.distance import distance_to
from tumoar.model import joint
from tumoar.model.bias import field
from tumoar.model.cavity import FLUID, find_blood, open_prior, start_fillings
from tumoar.model.conditionals import Sigma_given
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import WIDTH, ThetaPrior, build_theta_prior, expect_voxels
from tumoar.model.tumor_means import relate_tumor_means
from tumoar.numerics.distributions import ConstrainedNormal
from tumoar.numerics.voxels import UNUSED, WITH_DATA, WITHOUT_DATA, Groups, Volume
from tumoar.vocabulary.config import GemConfig
from tumoar.vocabulary.contrasts import Contrast, core_is_identifiable, select_constraints
from tumoar.vocabulary.errors import FitError
from tumoar.vocabulary.labels import LabelTable

Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

FEWEST = 100
"""Minimum number of voxels with data."""
MARGIN = 10.0
"""Millimeters of background modeled around the head, or around the brain if skull-stripped."""
GAP = 5.0
"""Millimeters of dilation that close gaps in a rim of core, as thick slices leave them."""
STARTED_LIKE = {"chiasm": "GWM"}
"""Mixtures initialized like another one, because their atlas prior mostly covers neighboring tissue."""
ENCLOSED = 0.05
"""Fraction of the tumor that core must enclose to count as a rim."""


def select_voxels(
    D: Array,
    background: Array,
    brain: Array,
    spacing: Sequence[float],
    excluded: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.uint8]:
    """(X, Y, Z) use of each voxel: WITH_DATA near the head where all contrasts have data.

    `background` and `brain` (X, Y, Z) are prior probabilities. Brain voxels without data are labeled by the
    prior alone (WITHOUT_DATA). All others, and `excluded` ones, are UNUSED.
    """
    inside = ndimage.binary_fill_holes(background <= 0.5)
    near = distance_to(inside, spacing) <= MARGIN
    seen = np.isfinite(D).all(0)
    if excluded is not None:
        near &= ~excluded
    use = np.where(near & seen, WITH_DATA, UNUSED)
    return np.where(near & ~seen & (brain > 0.5), WITHOUT_DATA, use).astype(np.uint8)


def tie_core_components(labels: LabelTable) -> LabelTable:
    """Reduce core to a single component, as in the simplified model (section 3.3)."""
    gmms = tuple(replace(g, components=1) if g.role == "core" else g for g in labels.gmms)
    return replace(labels, gmms=gmms)


def release_core_components(theta: Theta, few: LabelTable, labels: LabelTable) -> Theta:
    """Expand θ to the full table: tied components get the same values and equal weights.

    Their symmetry is broken by the first draw of t, and by constraints on the first component.
    """
    source = np.concatenate(
        [np.arange(few.Q)[few.component_slice(x)].repeat(labels.G[x] // few.G[x]) for x in range(labels.X)]
    )
    share = (few.G / labels.G)[labels.x_of_component]
    return Theta(theta.gamma[source] * share, theta.mu[source], theta.Sigma[source], theta.C)


def initialize_prior(
    labels: LabelTable,
    contrasts: Sequence[Contrast],
    D: Array,
    use: npt.NDArray[np.uint8],
    pi: Array,
    x_of_column: npt.NDArray[np.int64],
    tumor_mm3: Mapping[str, float],
    voxel_mm3: float,
    config: GemConfig,
) -> ThetaPrior:
    """p(θ) with hyperparameters of these voxels: moments of D, and I_x from π (X, Y, Z, columns)."""
    seen = D[:, use == WITH_DATA].astype(np.float64)
    if seen.shape[1] < FEWEST:
        raise FitError(
            "voxels",
            "too few voxels to fit the model",
            found=seen.shape[1],
            do="set finer levels (gem.levels), or give a smaller --exclude mask",
        )
    sums = np.zeros(pi.shape[-1])
    for x in range(len(pi)):  # slab by slab: π is large
        sums += pi[x][use[x] == WITH_DATA].sum(0, dtype=np.float64)
    by_mixture = np.asarray(np.bincount(x_of_column, sums, minlength=labels.X), float)
    known = {part: config.tumor_means * mm3 / voxel_mm3 for part, mm3 in tumor_mm3.items()}
    prior = build_theta_prior(
        labels,
        contrasts,
        mean=seen.mean(1),
        variance=seen.var(1),
        voxels=seen.shape[1],
        expected=expect_voxels(labels, by_mixture, tumor_mm3, voxel_mm3),
        bending=config.bending,
        relations=relate_tumor_means(labels, contrasts, known) if config.tumor_means > 0 else None,
    )
    if labels.cavity is None:
        return prior
    weight = GemConfig().tumor_means * tumor_mm3["core"] / voxel_mm3
    return open_prior(prior, labels, contrasts, weight)


def initialize_theta(
    labels: LabelTable,
    contrasts: Sequence[Contrast],
    v: Volume,
    pi: Array,
    groups: Groups,
    prior: ThetaPrior,
    *,
    learned: bool = True,
) -> Theta:
    """θ⁽⁰⁾: mean and covariance of the data under each mixture's prior.

    The G means of a mixture are the centers of G equal intervals of [m − σ, m + σ]. In the paper, tumor means
    are offset from the mean of the image by the distances of Table 4, in standard deviations of the image.

    If the start is `learned`, mixtures in `STARTED_LIKE` use the statistics of another one, white and gray
    matter begin at their medians, which a large tumor does not move, and tumor at the distances from white
    matter that patients have (`Contrast.tumor_offset`, `tumor_spread`); for contrasts without these, the
    distances of Table 4 are from the mean of the brain.
    """
    Q, N = labels.Q, len(contrasts)
    alike = Theta(
        gamma=(1 / labels.G)[labels.x_of_component],
        mu=np.tile(prior.mu0, (Q, 1)),
        Sigma=np.tile(np.diag(1 / prior.precision), (Q, 1, 1)),
        C=np.zeros((N, 4, 4, 4)),
    )
    moments, _ = joint.expect(v, pi, groups, alike)  # equal components: memberships equal the prior
    n = np.maximum(moments.n, 1e-6)
    mean = np.where(moments.n[:, None] > 1e-6, moments.d / n[:, None], prior.mu0)
    Sigma = Sigma_given(replace(alike, mu=mean), moments, prior).mode()
    deviation = np.sqrt(np.einsum("qnn->qn", Sigma))

    for name, like in STARTED_LIKE.items() if learned else ():
        if not (labels.has_gmm(name) and labels.has_gmm(like)):
            continue
        q, source = (labels.component_slice(labels.x_named(n)) for n in (name, like))
        mean[q], Sigma[q], deviation[q] = mean[source][:1], Sigma[source][:1], deviation[source][:1]

    turns = _spread_signs(contrasts, Sigma)
    mu = mean.copy()
    for x in range(labels.X):
        q, G = labels.component_slice(x), labels.G[x]
        mu[q] += turns[q] * deviation[q] * ((2 * np.arange(G) + 1) / G - 1)[:, None]
    image = np.tile(prior.mu0, (Q, 1)), np.tile(1 / (WIDTH * np.sqrt(prior.precision)), (Q, 1))
    # The prior of tumor covers the brain, so its mean and deviation are those of the brain.
    center, unit = (mean, deviation) if learned else image
    for x, gmm in enumerate(labels.gmms):
        q = labels.component_slice(x)
        for c, contrast in enumerate(contrasts):
            if contrast.tumor_start is not None and gmm.role in contrast.tumor_start:
                mu[q, c] = center[q, c] + contrast.tumor_start[gmm.role] * unit[q, c]
    if learned:
        mu, Sigma = _start_from_medians(labels, contrasts, v, pi, groups, mu, Sigma)
    mu, Sigma = start_fillings(labels, contrasts, mu, Sigma)
    return replace(alike, mu=_project_means(mu, Sigma, n, prior), Sigma=Sigma)


def _start_from_medians(
    labels: LabelTable,
    contrasts: Sequence[Contrast],
    v: Volume,
    pi: Array,
    groups: Groups,
    mu: Array,
    Sigma: Array,
) -> tuple[Array, Array]:
    """Replace means and covariances of white matter, gray matter and tumor in θ⁽⁰⁾ by robust ones."""
    mu, Sigma = mu.copy(), Sigma.copy()
    seen = v.use == WITH_DATA
    for name in ("GGM", "GWM"):  # white matter last: tumor is relative to it
        if not labels.has_gmm(name):
            return mu, Sigma
        x = labels.x_named(name)
        mass = pi[..., groups.column[groups.start[x] : groups.start[x + 1]]].sum(-1)
        inside = seen & (mass > 0.4)
        if inside.sum() < FEWEST:
            return mu, Sigma
        values = v.D[:, inside].astype(np.float64)
        median = np.median(values, axis=1)
        deviation = 1.4826 * np.median(np.abs(values - median[:, None]), axis=1)
        q = labels.component_slice(x)
        mu[q] = median + v.center
        Sigma[q] = np.diag(np.maximum(deviation, 1e-3) ** 2)
    white = median + v.center
    for part, x in (("core", labels.core), ("edema", labels.edema)):
        q = labels.component_slice(x)
        for n, contrast in enumerate(contrasts):
            if contrast.tumor_offset is not None and contrast.tumor_spread is not None:
                mu[q, n] = white[n] + contrast.tumor_offset[part]
                Sigma[q, n, :], Sigma[q, :, n] = 0, 0
                Sigma[q, n, n] = contrast.tumor_spread[part] ** 2
    return mu, Sigma


def _spread_signs(contrasts: Sequence[Contrast], Sigma: Array) -> Array:
    """(Q, N) ±1: means of an unknown MR contrast are ordered by its correlation with the first known one.

    The result does not change if such a contrast is inverted.
    """
    unknown = np.array([c.is_mr and not c.constraints and c.tumor_start is None for c in contrasts])
    first = int(np.argmin(unknown))
    return np.where(unknown & (Sigma[:, first] < 0), -1.0, 1.0)


def find_enhancing(labels: LabelTable, contrasts: Sequence[Contrast], D: Array, theta: Theta) -> Mask:
    """(X, Y, Z) True where bias-corrected D satisfies the lower bounds on the mean of enhancing core.

    Uses the contrasts that separate core from edema; True everywhere if there are none. Blood in a cavity
    does not enhance: it is as bright in T1.
    """
    out = np.ones(D.shape[1:], bool)
    for n, contrast in enumerate(contrasts):
        if not core_is_identifiable([contrast]):
            continue
        values = D[n] - field(theta.C[n : n + 1], D.shape[1:])[0]
        for c in select_constraints(contrast, labels):
            if c.gmm == "core" and c.op == ">=":
                refs = [theta.mu[labels.component_slice(labels.x_named(r)), n].max() for r in c.refs]
                out &= values >= max(refs) + c.log_offset
    return out if labels.cavity is None else out & ~find_blood(labels, contrasts, D, theta)


def find_solid(labels: LabelTable, pi: Array) -> Mask:
    """(X, Y, Z) True where the atlas (X, Y, Z, K) expects brain other than fluid."""
    solid = labels.in_brain & np.array([s.gmm != FLUID for s in labels.structures])
    return np.asarray(pi[..., solid].sum(-1) > 0.5)


def initialize_labels(
    labels: joint.Labels,
    bright: Mask,
    solid: Mask,
    spacing: Sequence[float],
    rng: np.random.Generator,
    *,
    opened: bool = False,
) -> joint.Labels:
    """Initial labels: core where it is `bright`, and in what it encloses of tumor and of `solid` brain.

    The single Gaussian of core in the simplified model may have settled in edema, so core that does not
    enhance is removed. An enhancing rim is filled: the necrosis in it looks like edema, or is taken for
    fluid or deep gray matter. Brain that was not taken for tumor counts only if much of it is farther from
    core than a gap is wide: between specks of core it is normal. A rim that surgery has `opened` need only
    enclose in one of three planes. If nothing is enclosed, a random fifth of the edema becomes core (section
    3.3). The start changes burn-in, not the posterior.
    """
    is_core, is_tumor = (labels.y == 1) & bright, labels.z == 1
    distance, much = distance_to(is_core, spacing), ENCLOSED * is_tumor.sum()
    reached = _fill_holes(distance <= GAP, in_planes=opened)
    inside = solid & ~is_tumor & ~is_core
    if not opened and (inside & reached & (distance > GAP)).sum() <= much:
        inside = np.zeros_like(is_core)
    enclosed = (distance_to(~reached, spacing) > GAP) & (is_tumor | inside) & ~is_core
    if enclosed.sum() > much:
        z, y = ((v | enclosed).astype(np.uint8) for v in (labels.z == 1, is_core))
        return joint.Labels(labels.l, z, y)
    return turn_to_core(joint.Labels(labels.l, labels.z, is_core.astype(np.uint8)), rng)


def _fill_holes(mask: Mask, *, in_planes: bool) -> Mask:
    """The mask with its holes, and with those of its slices along each axis if asked for."""
    out = ndimage.binary_fill_holes(mask)
    for axis in range(3 if in_planes else 0):
        plane = np.expand_dims(ndimage.generate_binary_structure(2, 1), axis)
        out |= ndimage.binary_fill_holes(mask, plane)
    return np.asarray(out)


def open_cavity(labels: joint.Labels, table: LabelTable, filling: Mask, blood: Mask) -> joint.Labels:
    """Make the cavity part of tumor and core, as in the full model; in the simplified one it is neither.

    In the simplified model core has a single Gaussian, which is the enhancing part or, where nothing
    enhances, settles in blood. Necrosis is then taken for fluid, and blood for core. A voxel of the cavity
    that is not clearly a `filling` therefore starts as core, and `blood` in the tumor as cavity.
    """
    assert table.cavity is not None
    found = labels.l == table.cavity
    is_cavity = (found & filling) | (blood & (labels.z == 1))
    l = np.where(found, np.uint8(np.flatnonzero(table.in_brain)[0]), labels.l)
    z, y = (np.where(found | is_cavity, np.uint8(1), v) for v in (labels.z, labels.y))
    return joint.Labels(np.where(is_cavity, np.uint8(table.cavity), l), z, y)


def turn_to_core(labels: joint.Labels, rng: np.random.Generator) -> joint.Labels:
    """Turn a random fifth of the edema to core (section 3.3)."""
    edema = np.flatnonzero((labels.z == 1) & (labels.y == 0))
    y = labels.y.copy()
    y.ravel()[rng.choice(edema, len(edema) // 5, replace=False)] = 1
    return joint.Labels(labels.l, labels.z, y)


def _project_means(mu: Array, Sigma: Array, n: Array, prior: ThetaPrior) -> Array:
    """Project means onto the constraints; components with more prior mass move less."""
    Q, N = mu.shape
    P = np.zeros((Q, N, Q, N))
    q = np.arange(Q)
    P[q, :, q, :] = n[:, None, None] * np.linalg.inv(Sigma) + np.diag(prior.precision)
    flat = P.reshape(Q * N, Q * N)
    nearest = ConstrainedNormal(flat, flat @ mu.ravel(), prior.A, prior.b, start=mu.ravel()).mode()
    return nearest.reshape(Q, N)
