"""A model small enough to enumerate: three structures, two of them brain, six Gaussian components."""

from __future__ import annotations

import numpy as np

from tumoar.model.gmm import Theta
from tumoar.model.shape.crbm import CRBM
from tumoar.model.theta_prior import ThetaPrior
from tumoar.vocabulary.labels import Gmm, LabelTable, Structure, TumorClass

LABELS = LabelTable(
    structures=(
        Structure("background", 0, False, "background", "#000000"),
        Structure("white matter", 1, True, "GWM", "#111111"),
        Structure("gray matter", 2, True, "GGM", "#222222"),
    ),
    gmms=(
        Gmm("core", 2, "core"),
        Gmm("edema", 1, "edema"),
        Gmm("GGM", 1),
        Gmm("GWM", 1),
        Gmm("background", 1),
    ),
    tumor=(TumorClass("core", 101, "#ff0000"), TumorClass("edema", 102, "#00ff00")),
    organs=(),
)
N = 2


def crbm(seed: int, lone: float, strength: float = 1.0, filters: int = 3, taps: int = 1) -> CRBM:
    """Filters of 2 x 2 x 2 voxels per free tap along each axis: strong enough that neighbors matter.

    A map with one voxel in it has the log-odds `lone` against the empty map.
    """
    rng = np.random.default_rng(seed)
    w = strength * rng.standard_normal((filters, taps, taps, taps)) / taps**1.5
    b = 0.5 * rng.standard_normal(filters) - 1
    gain = np.logaddexp(0, b[:, None, None, None] + w) - np.logaddexp(0, b)[:, None, None, None]
    return CRBM(w, b, a=lone - 8 * float(gain.sum()))


def theta(seed: int = 0) -> Theta:
    rng = np.random.default_rng(seed)
    a = 0.5 * rng.standard_normal((LABELS.Q, N, N + 1))
    return Theta(
        gamma=np.array([0.3, 0.7, 1, 1, 1, 1]),
        mu=rng.standard_normal((LABELS.Q, N)),
        Sigma=a @ a.swapaxes(1, 2) + 0.4 * np.eye(N),
        C=np.zeros((N, 4, 4, 4)),
    )


def pi(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    p = np.random.default_rng(seed).dirichlet([0.6, 1.5, 1.5], shape).astype(np.float32)
    return p / p.sum(-1, keepdims=True)


def prior() -> ThetaPrior:
    """Proper, with constraints that cut: edema above both tissues in the first contrast, core above gray."""
    A = np.zeros((3, LABELS.Q, N))
    core, edema, ggm, gwm = (
        LABELS.component_slice(LABELS.x_named(n)).start for n in ("core", "edema", "GGM", "GWM")
    )
    A[0, [ggm, edema], 0], A[1, [gwm, edema], 0], A[2, [ggm, core], 1] = (1, -1), (1, -1), (1, -1)
    return ThetaPrior(
        alpha0=2.0,
        nu0=np.full(LABELS.Q, N + 5.0),
        S0=np.tile(4.0 * np.eye(N), (LABELS.Q, 1, 1)),
        A=A.reshape(3, -1),
        b=np.array([-0.2, 0.0, -0.1]),
        mu0=np.array([0.5, -0.3]),
        precision=np.array([2.0, 3.0]),
        bias_precision=np.linspace(1.0, 4.0, N * 64).reshape(N, 4, 4, 4),
        group=LABELS.x_of_component,
        has_bias=np.array([True, False]),
    )
