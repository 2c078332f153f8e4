"""How far tumor lies from white matter in each contrast: a Gaussian prior learned from patients.

The paper turns statistics of patients into bounds (section 3.3, Table 3). Here they also give the means of
edema and of the enhancing part of core, minus that of white matter, a joint prior over contrasts: its mean is
`Contrast.tumor_offset`, its deviations `Contrast.tumor_deviation`, its correlations a table in the package.
Contrasts that no patient has shown have no such prior.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from tumoar.model.theta_prior import Quadratic
from tumoar.vocabulary.contrasts import Contrast
from tumoar.vocabulary.labels import LabelTable

Array = npt.NDArray[np.floating]

REFERENCE, FLUID = "GWM", "CSF"
FLUID_DEVIATION = {"FLAIR": 1.0, "DIR": 1.0, "FLAIR2": 1.0, "other": 0.25}
"""Standard deviation in log intensity (100 HU in CT) of the fluid in a cavity from CSF, due to protein; more
where CSF is suppressed to the noise. Assumptions, without measurement."""
TIES = 10.0
"""Weight of that prior relative to those of tumor means: it must hold for cavities of some cm³."""


def relate_tumor_means(
    labels: LabelTable, contrasts: Sequence[Contrast], voxels: Mapping[str, float]
) -> Quadratic | None:
    """Prior of tumor means relative to white matter, as strong as `voxels` of core and of edema.

    Applies to the mean of the components of edema, and to the first component of core, which enhances. None
    if no contrast has statistics.
    """
    known = [n for n, c in enumerate(contrasts) if c.tumor_offset is not None and c.tumor_deviation]
    if not known or not labels.has_gmm(REFERENCE):
        return None
    Q, N = labels.Q, len(contrasts)
    J, j = np.zeros((Q * N, Q * N)), np.zeros(Q * N)
    for part, x in (("core", labels.core), ("edema", labels.edema)):
        q, white = labels.component_slice(x), labels.component_slice(labels.x_named(REFERENCE))
        rows = np.zeros((len(known), Q, N))
        for i, n in enumerate(known):
            rows[i, white, n] -= 1 / (white.stop - white.start)
            if part == "core":
                rows[i, q.start, n] = 1
            else:
                rows[i, q, n] = 1 / (q.stop - q.start)
        K = rows.reshape(len(known), -1)
        mean, covariance = _moments(part, [contrasts[n] for n in known])
        precision = voxels[part] * np.linalg.inv(covariance)
        J += K.T @ precision @ K
        j += K.T @ precision @ mean
    if labels.cavity is not None:
        for tie in (_tie_fluid(labels, contrasts, voxels["core"]), _tie_blood(labels, contrasts)):
            J += tie.J
            j += tie.j
    return Quadratic(J, j)


def _tie_fluid(labels: LabelTable, contrasts: Sequence[Contrast], voxels: float) -> Quadratic:
    """Prior that the fluid of a cavity, its first component, looks like CSF in every contrast."""
    Q, N = labels.Q, len(contrasts)
    J, j = np.zeros((Q * N, Q * N)), np.zeros(Q * N)
    if not labels.has_gmm(FLUID):
        return Quadratic(J, j)
    first = labels.component_slice(int(labels.x_of_l[labels.cavity])).start
    csf = labels.component_slice(labels.x_named(FLUID))
    for n in range(N):
        row = np.zeros((Q, N))
        row[first, n] = 1
        row[csf, n] = -1 / (csf.stop - csf.start)
        deviation = FLUID_DEVIATION.get(contrasts[n].name, FLUID_DEVIATION["other"])
        J += voxels * TIES / deviation**2 * np.outer(row.ravel(), row.ravel())
    return Quadratic(J, j)


def _tie_blood(labels: LabelTable, contrasts: Sequence[Contrast]) -> Quadratic:
    """Prior of blood in a cavity, its second component, relative to white matter."""
    Q, N = labels.Q, len(contrasts)
    J, j = np.zeros((Q * N, Q * N)), np.zeros(Q * N)
    own = labels.component_slice(int(labels.x_of_l[labels.cavity]))
    white = labels.component_slice(labels.x_named(REFERENCE))
    for n, contrast in enumerate(contrasts):
        if own.stop - own.start < 2 or contrast.name not in blood_offsets():
            continue
        mean, deviation = blood_offsets()[contrast.name]
        row = np.zeros((Q, N))
        row[own.start + 1, n] = 1
        row[white, n] = -1 / (white.stop - white.start)
        J += np.outer(row.ravel(), row.ravel()) / deviation**2
        j += row.ravel() * mean / deviation**2
    return Quadratic(J, j)


@cache
def blood_offsets() -> Mapping[str, tuple[float, float]]:
    """Distance of blood in a cavity from white matter in log intensity, and its deviation, by contrast."""
    table = tomllib.loads(files("tumoar").joinpath("data/cavity.toml").read_text(encoding="utf-8"))
    return {name: (mean, deviation) for name, (mean, deviation) in table["blood"].items()}


def _moments(part: str, contrasts: Sequence[Contrast]) -> tuple[Array, Array]:
    """Mean and covariance over patients of the distance from white matter."""
    mean = np.array([c.tumor_offset[part] for c in contrasts if c.tumor_offset])
    deviation = np.array([c.tumor_deviation[part] for c in contrasts if c.tumor_deviation])
    names = [c.name for c in contrasts]
    correlation = np.eye(len(names))
    for pair, value in _correlations()[part].items():
        first, second = pair.split()
        if first in names and second in names:
            a, b = names.index(first), names.index(second)
            correlation[a, b] = correlation[b, a] = value
    return mean, correlation * np.outer(deviation, deviation)


@cache
def _correlations() -> Mapping[str, Mapping[str, float]]:
    return tomllib.loads(files("tumoar").joinpath("data/tumor_means.toml").read_text(encoding="utf-8"))
