"""A resection cavity in the model: a structure that exists only inside core (decision 0041).

Where y = 1 tissue is core or has been removed. The cavity is a column of π, so that the voxel kernels draw it
like any structure, and shares the shape prior of y: it is where core was. Its mixture has a component for
each thing that fills it: fluid, which looks like CSF, air, and blood, which lie at a distance from white
matter (data/cavity.toml).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.model.atlas import Atlas
from tumoar.model.bias import field
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import Quadratic, ThetaPrior
from tumoar.vocabulary.contrasts import Contrast, fluid_is_identifiable, select_constraints
from tumoar.vocabulary.labels import LabelTable, add_cavity

Array = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]

RARE = 0.05
"""Probability of a cavity at nodes of the brain in Algorithm 2."""
OTHER = 0.1
"""Factor on the probability of untrained structures: unspecified tissue, a single wide Gaussian, otherwise
becomes the fluid of the cavity."""
SHARE = 0.3
"""Prior odds of cavity to core in Algorithm 1, where the atlas expects no fluid."""
BLOOD_SHARE = 30.0
"""The same where the images show blood. Each of the three Gaussians of core can become wide enough for it."""
UNLIKE_SHARE = 0.03
"""The same where the images show nothing that fills a cavity. Its fluid can widen until it holds necrosis."""
SHARES = (UNLIKE_SHARE, SHARE, BLOOD_SHARE)
"""The same by what the images show (`find_kinds`)."""
CLEAR = 1.6
"""Factor by which clear fluid differs at least from white and gray matter: half of the way from white matter
to CSF in T1, on a log scale. Necrosis may be within the bounds on the mean of fluid, which are wider."""
FIRM = 1e5
"""Voxels that the prior of the covariances of air and blood is worth: more than a cavity has."""
WHITE, FLUID = "GWM", "CSF"
FILLINGS = ("fluid", "air", "blood")
"""Components of the mixture, in this order; blood is left out without a T1."""
FLUID_DEVIATION = {"FLAIR": 1.0, "DIR": 1.0, "FLAIR2": 1.0, "other": 0.25}
"""Standard deviation in log intensity (100 HU in CT) of the fluid in a cavity from CSF, due to protein; more
where CSF is suppressed to the noise. Assumptions, without measurement."""
TIES = 10.0
"""Weight of that prior relative to those of tumor means: it must hold for cavities of some cm³."""


class Filling(NamedTuple):
    """Log intensity (HU in CT) relative to white matter: mean, its deviation between patients, and within."""

    mean: float
    deviation: float
    spread: float


class Fillings(NamedTuple):
    """(X, Y, Z) where the images show any filling, one that is not necrosis (if they tell), and blood."""

    any: Mask
    clear: Mask
    blood: Mask


def open_atlas(atlas: Atlas, *, blood: bool = True) -> Atlas:
    """The atlas with a cavity, in proportion to what is brain but not fluid: ventricles are no cavities."""
    old, labels = atlas.labels, add_cavity(atlas.labels, blood=blood)
    fluid = np.array([s.gmm == FLUID for s in old.structures])
    solid = atlas.alpha[:, old.in_brain & ~fluid].sum(1, keepdims=True, dtype=np.float64)
    factor = np.where(old.trained, 1.0, OTHER)
    alpha = np.hstack([atlas.alpha.astype(np.float64) * factor, RARE * solid])
    return replace(atlas, alpha=alpha / alpha.sum(1, keepdims=True), labels=labels)


def open_prior(
    prior: ThetaPrior, labels: LabelTable, contrasts: Sequence[Contrast], voxels: float
) -> ThetaPrior:
    """The prior of θ with what is known of a cavity; that of its means is as strong as `voxels`.

    Covariances of air and blood are those within a patient. Otherwise an empty component would shrink to the
    narrow prior of tissue and no longer find its voxels, or widen to whatever no other component describes.
    """
    nu0, S0, known = prior.nu0.copy(), prior.S0.copy(), relate_cavity_means(labels, contrasts, voxels)
    for q in {q for q, *_ in _find_fillings(labels, contrasts)}:
        nu0[q], S0[q] = prior.nu0[q] + FIRM, S0[q] * (1 + FIRM / prior.nu0[q])
    for q, n, filling in _find_fillings(labels, contrasts):
        S0[q, n, :], S0[q, :, n] = 0, 0
        S0[q, n, n] = nu0[q] * filling.spread**2
    if prior.relations is not None:
        known = Quadratic(known.J + prior.relations.J, known.j + prior.relations.j)
    return replace(prior, nu0=nu0, S0=S0, relations=known)


def relate_cavity_means(labels: LabelTable, contrasts: Sequence[Contrast], voxels: float) -> Quadratic:
    """Prior of the means of a cavity: fluid is like CSF, air and blood lie at distances from white matter.

    Blood does not enhance: its distances in T1 and T1c are tied to each other.
    """
    Q, N, mixture = labels.Q, len(contrasts), _slice(labels)
    prior = Quadratic(np.zeros((Q * N, Q * N)), np.zeros(Q * N))

    def tie(row: Array, mean: float, precision: float) -> None:
        prior.J[...] += precision * np.outer(row, row)
        prior.j[...] += precision * mean * row

    if labels.has_gmm(FLUID):
        csf = labels.component_slice(labels.x_named(FLUID))
        for n, contrast in enumerate(contrasts):
            deviation = FLUID_DEVIATION.get(contrast.name, FLUID_DEVIATION["other"])
            tie(_minus(Q, N, mixture.start, csf, n), 0.0, TIES * voxels / deviation**2)
    if not labels.has_gmm(WHITE):
        return prior
    white = labels.component_slice(labels.x_named(WHITE))
    for q, n, filling in _find_fillings(labels, contrasts):
        tie(_minus(Q, N, q, white, n), filling.mean, voxels / filling.deviation**2)
    names = [c.name for c in contrasts]
    if mixture.stop - mixture.start == len(FILLINGS) and {"T1", "T1c"} <= set(names):
        t1, t1c = (_minus(Q, N, mixture.stop - 1, white, names.index(name)) for name in ("T1", "T1c"))
        mean, deviation, _ = _table()["enhancement"]["blood"]
        tie(t1c - t1, mean, TIES * voxels / deviation**2)
    return prior


def start_fillings(
    labels: LabelTable, contrasts: Sequence[Contrast], mu: Array, Sigma: Array
) -> tuple[Array, Array]:
    """θ⁽⁰⁾ with fluid like CSF; air and blood at their distances from white matter, as wide as these vary."""
    if labels.cavity is None:
        return mu, Sigma
    mu, Sigma, first = mu.copy(), Sigma.copy(), _slice(labels).start
    if labels.has_gmm(FLUID):
        csf = labels.component_slice(labels.x_named(FLUID))
        mu[first], Sigma[first] = mu[csf].mean(0), Sigma[csf].mean(0)
    if not labels.has_gmm(WHITE):
        return mu, Sigma
    white = mu[labels.component_slice(labels.x_named(WHITE))].mean(0)
    for q, n, filling in _find_fillings(labels, contrasts):
        mu[q, n] = white[n] + filling.mean
        Sigma[q, n, :], Sigma[q, :, n] = 0, 0
        Sigma[q, n, n] = filling.deviation**2
    return mu, Sigma


def find_blood(labels: LabelTable, contrasts: Sequence[Contrast], D: Array, theta: Theta) -> Mask:
    """(X, Y, Z) True where D is as bright in T1 as blood must be, and hardly brighter in T1c.

    Brightness is relative to white matter, and averaged over the 27 voxels around each, because single voxels
    of any tissue may be as bright; voxels beside such blood need only be bright in T1 themselves. False
    everywhere in models without blood.
    """
    names, mixture, given = [c.name for c in contrasts], _slice(labels), (labels, contrasts, D, theta)
    if "T1" not in names or mixture.stop - mixture.start < len(FILLINGS):
        return np.zeros(D.shape[1:], bool)
    out = is_within_bounds("blood", *given, averaged=True)
    if "T1c" in names and labels.has_gmm(WHITE):
        white = theta.mu[labels.component_slice(labels.x_named(WHITE))].mean(0)
        places = [names.index(name) for name in ("T1", "T1c")]
        t1, t1c = (_correct(D, theta, n, averaged=True) - white[n] for n in places)
        mean, deviation, spread = _table()["enhancement"]["blood"]
        out &= t1c - t1 <= mean + np.hypot(deviation, spread)
    beside = ndimage.binary_dilation(out, np.ones((3, 3, 3)), iterations=2)
    return np.asarray(out | (beside & is_within_bounds("blood", *given, averaged=False)))


def find_fillings(labels: LabelTable, contrasts: Sequence[Contrast], D: Array, theta: Theta) -> Fillings:
    """Where D, or its average, is within the bounds of what fills a cavity."""
    blood = find_blood(labels, contrasts, D, theta)
    within = blood | _find_fluid(labels, contrasts, D, theta)
    clear = find_clear(labels, contrasts, D, theta) | blood
    return Fillings(within, clear if fluid_is_identifiable(contrasts) else within, blood)


def find_clear(labels: LabelTable, contrasts: Sequence[Contrast], D: Array, theta: Theta) -> Mask:
    """(X, Y, Z) where D is clear fluid or air; nowhere if no contrast tells fluid from necrosis."""
    if not fluid_is_identifiable(contrasts):
        return np.zeros(D.shape[1:], bool)
    return _find_fluid(labels, contrasts, D, theta, least=float(np.log(CLEAR)))


def _find_fluid(
    labels: LabelTable, contrasts: Sequence[Contrast], D: Array, theta: Theta, least: float = 0.0
) -> Mask:
    """(X, Y, Z) where D, or its average, is within the bounds of fluid or of air."""
    out = np.zeros(D.shape[1:], bool)
    for name in FILLINGS[:2]:
        for averaged in (False, True):
            out |= is_within_bounds(name, labels, contrasts, D, theta, averaged=averaged, least=least)
    return out


def find_kinds(found: Fillings) -> npt.NDArray[np.uint8]:
    """(X, Y, Z) index into `SHARES`, by what the images show."""
    return np.select([found.blood, found.any], [2, 1], 0).astype(np.uint8)


def find_odds(kinds: npt.NDArray[np.uint8], factor: Array) -> Array:
    """(X, Y, Z) factor on π of a cavity in Algorithm 1; `factor` is that on the prior of tumor."""
    share = np.array(SHARES, np.float32)[kinds]
    return np.asarray(share / np.float32(RARE) / np.maximum(factor.astype(np.float32), 1e-3))


def is_within_bounds(
    filling: str,
    labels: LabelTable,
    contrasts: Sequence[Contrast],
    D: Array,
    theta: Theta,
    *,
    averaged: bool,
    least: float = 0.0,
) -> Mask:
    """(X, Y, Z) True where D, in all contrasts, is within the bounds on the mean of what fills a cavity.

    Bounds that are closer to the tissue than `least`, in log intensity, count as that.
    """
    gmm, component = labels.gmms[labels.x_of_component[_slice(labels).start]].name, FILLINGS.index(filling)
    out: Mask = np.asarray(np.isfinite(D).all(0))
    for n, contrast in enumerate(contrasts):
        for c in select_constraints(contrast, labels):
            if (c.gmm, c.component) == (gmm, component):
                means = theta.mu[:, n]
                refs = [means[labels.component_slice(labels.x_named(ref))] for ref in c.refs]
                values = _correct(D, theta, n, averaged=averaged)
                if c.op == ">=":
                    out &= values >= max(r.max() for r in refs) + max(c.log_offset, least)
                else:
                    out &= values <= min(r.min() for r in refs) + min(c.log_offset, -least)
    return out


def _correct(D: Array, theta: Theta, n: int, *, averaged: bool) -> Array:
    """(X, Y, Z) bias-corrected contrast n, which may be averaged over 27 voxels; 0 without data."""
    values = D[n] - field(theta.C[n : n + 1], D.shape[1:])[0]
    return _average(values) if averaged else np.nan_to_num(values)


def _average(values: Array) -> Array:
    """(X, Y, Z) mean of each voxel with data and its 26 neighbors; 0 elsewhere."""
    seen = np.isfinite(values)
    around = [ndimage.uniform_filter(v.astype(np.float32), 3) for v in (np.where(seen, values, 0), seen)]
    return np.where(seen, around[0] / np.maximum(around[1], 1 / 27), 0)


def _slice(labels: LabelTable) -> slice:
    assert labels.cavity is not None
    return labels.component_slice(int(labels.x_of_l[labels.cavity]))


def _find_fillings(labels: LabelTable, contrasts: Sequence[Contrast]) -> Iterator[tuple[int, int, Filling]]:
    """Component, contrast and distance from white matter of what fills a cavity besides fluid."""
    mixture = _slice(labels)
    for q, name in zip(range(mixture.start, mixture.stop), FILLINGS):
        for n, contrast in enumerate(contrasts):
            if name in _table() and contrast.name in _table()[name]:
                yield q, n, _table()[name][contrast.name]


def _minus(Q: int, N: int, q: int, tissue: slice, n: int) -> Array:
    """(Q N,) row that takes the mean of a tissue from the mean of a component in contrast n."""
    row = np.zeros((Q, N))
    row[tissue, n] = -1 / (tissue.stop - tissue.start)
    row[q, n] += 1
    return row.ravel()


@cache
def _table() -> Mapping[str, Mapping[str, Filling]]:
    table = tomllib.loads(files("tumoar").joinpath("data/cavity.toml").read_text(encoding="utf-8"))
    return {name: {c: Filling(*row) for c, row in rows.items()} for name, rows in table["filling"].items()}
