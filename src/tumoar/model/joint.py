"""p_i(l, z, y, t | d, fields, θ, η) of all voxels: its expectation, a draw, or its maximum.

Interface between the label table and the voxel kernels. The prior π is an array (X, Y, Z, columns) with one
column per structure, or per class of structures with the same intensity model (`assign_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tumoar.model.bias import cosines
from tumoar.model.gmm import Moments, Theta
from tumoar.numerics import voxels, voxels_draw, voxels_em
from tumoar.numerics.voxels import Gaussians, Groups, Prior, Volume
from tumoar.vocabulary.labels import LabelTable

Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Flat:
    """The simplified tumor prior of section 2.3.2: a fraction w of the brain is tumor, u of it core.

    In its linear form: core w u π_B, edema w (1 − u) π_B, brain (1 − w) π_l. It sums to one for every η; the
    normalizer of the energy in the paper, a_z = log((w − w u)/(1 − w)), a_y = log(u/(1 − u)), depends on η.
    """

    w: float = 0.1
    u: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.w < 1 and 0 < self.u < 1):
            raise ValueError(f"w and u must lie between 0 and 1, got {self.w} and {self.u}")


@dataclass(frozen=True)
class Labels:
    """l, z and y of all voxels, (X, Y, Z) uint8 each; l is a column of π."""

    l: Mask
    z: Mask
    y: Mask

    def __post_init__(self) -> None:
        for array in (self.l, self.z, self.y):
            array.flags.writeable = False


def build_volume(D: Array, use: Mask) -> Volume:
    """Data for the kernels: intensities D (N, X, Y, Z) float32 and the use of each voxel (`WITH_DATA`, …)."""
    a, b, c = (cosines(n) for n in use.shape)
    return voxels.build_volume(D, use, (a, b, c))


def build_part(D: Array, use: Mask, shape: tuple[int, ...], box: tuple[slice, ...]) -> Volume:
    """`build_volume` of a box of a volume of this shape: bias fields are those of the whole."""
    a, b, c = (cosines(n)[part] for n, part in zip(shape, box))
    return voxels.build_volume(D, use, (a, b, c))


def pack_prior(v: Volume, pi: npt.NDArray) -> Prior:
    """Pack π (X, Y, Z, columns) for `draw`."""
    return voxels.pack(v, pi)


def assign_columns(labels: LabelTable) -> npt.NDArray[np.int64]:
    """(K,) column of each structure; structures with the same mixture and membership in B share one."""
    keys = [(int(x), bool(b)) for x, b in zip(labels.x_of_l, labels.in_brain)]
    distinct = sorted(set(keys), key=keys.index)
    return np.array([distinct.index(key) for key in keys])


def compile_groups(
    labels: LabelTable,
    columns: npt.NDArray[np.int64] | None = None,
    flat: Flat | None = None,
    *,
    tumor_columns: bool = False,
) -> Groups:
    """Table 2 and Eq. (3) as index arrays: columns of each mixture, and their weights in a flat prior.

    Without `flat` all weights are 1, and the fields of `draw` determine the prior of tumor. With
    `tumor_columns` π has two more columns at its end, the prior probabilities of edema and of core; a cavity
    is a structure like others then.
    """
    columns = np.arange(labels.K) if columns is None else columns
    level = np.zeros(labels.X, np.int64)
    level[labels.edema], level[labels.core] = 1, 2
    if labels.cavity is not None and not tumor_columns:
        level[labels.x_of_l[labels.cavity]] = 2
    members: list[list[int]] = [[] for _ in range(labels.X)]
    weights: list[list[float]] = [[] for _ in range(labels.X)]
    for l, z, y in labels.states:
        x, of_l = labels.x(l, z, y), int(columns[l])
        if of_l not in members[x]:
            members[x].append(of_l)
            weights[x].append(_weight(z, y, bool(labels.in_brain[l]), flat))
    if tumor_columns:
        last = int(columns.max()) + 1
        members[labels.edema], members[labels.core] = [last], [last + 1]
        weights[labels.edema], weights[labels.core] = [1.0], [1.0]
    column = np.array([c for m in members for c in m], np.int64)
    of_entry = np.repeat(level, [len(m) for m in members])
    return Groups(
        x_of_q=labels.x_of_component.astype(np.int64),
        start=np.cumsum([0] + [len(m) for m in members], dtype=np.int64),
        column=column,
        weight=np.array([w for m in weights for w in m], np.float32),
        level=level,
        order=np.lexsort((column, of_entry)).astype(np.int64),
    )


def expect(v: Volume, pi: Array, groups: Groups, theta: Theta) -> tuple[Moments, float]:
    """Moments of the expected t (Appendix B), and the log likelihood Σ_i log p(d_i | θ, η)."""
    sums, log_likelihood = voxels_em.expect(v, pi, groups, _gaussians(v, theta))
    return Moments(*sums), log_likelihood


def draw(
    v: Volume,
    pi: Prior,
    groups: Groups,
    theta: Theta,
    fields: tuple[Array, Array],
    before: Labels,
    key: tuple[int, int],
    color: int = -1,
    active: Mask | None = None,
    likely: Mask | None = None,
    rows: npt.NDArray[np.bool_] | None = None,
    tau: float = 1.0,
) -> tuple[Labels, Moments]:
    """(l, z, y) ~ Eq. (7) jointly with t ~ Eq. (A.1), and the moments of that t.

    `fields` are the log-odds of z and y from the shape priors, (X, Y, Z) float32; ±∞ fixes the value. Tumor
    is drawn where `active` (X, Y, Z) is 1 or 2, core where it is 2; without `active`, everywhere. `key` is a
    seed and the number of the pass. Voxels that are unused, not of `color` or not in `rows` (X, Y) keep their
    labels from `before` and do not enter the moments. `likely` (X, Y, Z) uint8, if given, is set to 1 where
    the probability of tumor is at least 1e-5, to 2 where that of core is. `tau` is the likelihood exponent.
    """
    active = np.full(v.use.shape, 2, np.uint8) if active is None else active
    out = (before.l.copy(), before.z.copy(), before.y.copy())
    g = _gaussians(v, theta, tau)
    sums = voxels_draw.draw(v, pi, groups, g, fields, active, key, out, color, likely, rows)
    return Labels(*out), Moments(*sums)


def find_most_probable(v: Volume, pi: Array, groups: Groups, theta: Theta) -> Labels:
    """Maximize p(l, z, y | d, θ, η) in each voxel (section 2.3.2); ties go to the first state."""
    out = tuple(np.zeros(v.use.shape, np.uint8) for _ in range(3))
    voxels_draw.find_most_probable(v, pi, groups, _gaussians(v, theta), (out[0], out[1], out[2]))
    return Labels(*out)


def class_likelihoods(
    v: Volume, groups: Groups, theta: Theta, out: Array, reference: int = 0, tau: float = 1.0
) -> float:
    """Write L_ik = p(d_i | column k) / p(d_i | reference) to out (X, Y, Z, columns), for the mesh.

    Returns Σ_i log p(d_i | reference); plus Σ_i log Σ_k π_i(k) L_ik it equals the log likelihood of `expect`.
    """
    return voxels_em.class_densities(v, groups, _gaussians(v, theta, tau), out, reference)


def drop_tumor(groups: Groups, theta: Theta) -> tuple[Groups, Theta]:
    """Keep the mixtures and components of normal tissue only, for `class_likelihoods`."""
    keep, size = groups.level == 0, np.diff(groups.start)
    q, entry = keep[groups.x_of_q], np.repeat(keep, size)
    column = groups.column[entry]
    normal = Groups(
        x_of_q=(np.cumsum(keep) - 1)[groups.x_of_q[q]],
        start=np.concatenate([[0], np.cumsum(size[keep])]).astype(np.int64),
        column=column,
        weight=groups.weight[entry],
        level=groups.level[keep],
        order=np.argsort(column, kind="stable"),
    )
    return normal, Theta(theta.gamma[q], theta.mu[q], theta.Sigma[q], theta.C)


def _weight(z: int, y: int, in_brain: bool, flat: Flat | None) -> float:
    if flat is None:
        return 1.0
    if z:
        return flat.w * (flat.u if y else 1 - flat.u)
    return 1 - flat.w if in_brain else 1.0


def _gaussians(v: Volume, theta: Theta, tau: float = 1.0) -> Gaussians:
    return voxels.whiten_gaussians(theta.gamma, theta.mu, theta.Sigma, theta.C, v.center, tau)
