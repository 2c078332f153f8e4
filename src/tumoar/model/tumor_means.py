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

REFERENCE = "GWM"


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
    return Quadratic(J, j)


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
