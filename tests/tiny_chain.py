"""Whole models small enough to enumerate: all drawn exactly from the prior, and the chain on its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import reference_voxels as reference
import tiny_model as tiny
from scipy.special import logsumexp

from tumoar.inference import gibbs
from tumoar.inference.schedule import Schedule
from tumoar.model import joint
from tumoar.model.gmm import Theta
from tumoar.model.shape.base import FlatPrior, ShapePrior
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.model.theta_prior import ThetaPrior
from tumoar.numerics.distributions import Dirichlet, InverseWishart
from tumoar.numerics.voxels import UNUSED, WITH_DATA
from tumoar.vocabulary.labels import LabelTable

LABELS = tiny.LABELS
LEVELS = (0, 1, 2)
"""No tumor, edema, core: z + y."""


def energy(shape_prior: ShapePrior):
    """Of a map on its grid, zeros around it, hidden units summed out."""
    if isinstance(shape_prior, FirstOrderMRF):
        return shape_prior.energy
    if isinstance(shape_prior, FlatPrior):
        return lambda v: -shape_prior.a * v.sum()
    return lambda v: shape_prior.free_energy(np.pad(v, shape_prior.reach).astype(float))


def mixtures(labels: joint.Labels, table: LabelTable = LABELS) -> np.ndarray:
    """(X, Y, Z) x(l, z, y)."""
    x = table.x_of_l[labels.l]
    x[labels.z == 1], x[labels.y == 1] = table.edema, table.core
    return x


@dataclass(frozen=True)
class TinyModel:
    """Priors of z and y on a grid of `shape`; `use` and what is held are free and all in use unless given.

    Rows (X, Y) that `rest` must hold z at 0: they are drawn in every second sweep alone. In every second
    sweep tumor is considered only as far as `near` (X, Y, Z) says. `location` (X, Y, Z) is added to the
    log-odds of z.
    """

    shape: tuple[int, int, int]
    shapes: tuple[ShapePrior, ShapePrior]
    prior: ThetaPrior
    use: np.ndarray | None = None
    fixed_z: np.ndarray | None = None
    fixed_y: np.ndarray | None = None
    rest: np.ndarray | None = None
    near: np.ndarray | None = None
    location: np.ndarray | None = None

    @cached_property
    def in_use(self) -> np.ndarray:
        return np.ones(self.shape, np.uint8) if self.use is None else self.use

    @cached_property
    def pi(self) -> np.ndarray:
        return tiny.pi(self.shape)

    @property
    def schedule(self) -> Schedule:
        """Full sweeps alone; or every second one; or none, with rows that rest in turn."""
        always = 2**40
        if self.rest is not None:
            return Schedule(always, 2, always)
        return Schedule() if self.near is None else Schedule(full_every=2)

    def chain(self, D: np.ndarray, seed: int = 0) -> gibbs.Chain:
        volume = joint.build_volume(np.ascontiguousarray(D, np.float32), self.in_use)
        return gibbs.Chain(
            LABELS,
            volume,
            joint.pack_prior(volume, self.pi),
            self.prior,
            *self.shapes,
            self.in_use != UNUSED,
            seed,
            self.fixed_z,
            self.fixed_y,
            self.schedule,
            location=self.location,
        )

    def state(
        self, sweep: int, theta: Theta, labels: joint.Labels, D: np.ndarray, t: np.ndarray
    ) -> gibbs.ChainState:
        """Where a chain stands that has drawn all of this; `sweep` is not 0 if rows rest."""
        D = D.astype(float)
        active = np.where(self.in_use != UNUSED, np.uint8(2), np.uint8(0))
        if self.near is not None:
            active = np.minimum(active, self.near)
        if self.rest is None:
            return gibbs.ChainState(sweep, theta, labels, reference.moments(D, t), active)
        active[self.rest] = 0
        rest = reference.moments(D, t * self.rest[:, :, None])
        return gibbs.ChainState(sweep, theta, labels, reference.moments(D, t), active, rest)

    @cached_property
    def maps(self) -> np.ndarray:
        """(M, n) every allowed level of every voxel."""
        n = int(np.prod(self.shape))
        maps = np.indices((3,) * n, np.uint8).reshape(n, -1).T
        keep = (maps[:, self.in_use.ravel() == UNUSED] == 0).all(1)
        for level, held in ((1, self.fixed_z), (2, self.fixed_y)):
            if held is not None:
                free = held.ravel() < 0
                keep &= ((maps >= level) == (held.ravel() == 1))[:, ~free].all(1)
        return maps[keep]

    @cached_property
    def log_shape(self) -> np.ndarray:
        """(M,) −E^z(z) − E^y(y) with the hidden units summed out."""
        powers = 2 ** np.arange(self.maps.shape[1])
        total = np.zeros(len(self.maps))
        for level, shape_prior in zip((1, 2), self.shapes):
            of = energy(shape_prior)
            codes = (self.maps >= level) @ powers
            _, first, where = np.unique(codes, return_index=True, return_inverse=True)
            values = [-of((self.maps[i] >= level).reshape(self.shape)) for i in first]
            total += np.array(values)[where.reshape(-1)]
        if self.location is not None:
            total += (self.maps >= 1) @ self.location.ravel().astype(float)
        return total

    def log_maps(self, log_density: np.ndarray | None = None) -> np.ndarray:
        """(M,) log p(z, y), or given log densities (mixtures, X, Y, Z) log p(z, y | d); l, t summed out."""
        total = self.log_weights(log_density)
        return total - logsumexp(total)

    def log_weights(self, log_density: np.ndarray | None = None) -> np.ndarray:
        """(M,) `log_maps` without its normalizer, which depends on π."""
        weight = logsumexp(self.log_states(log_density), axis=1).reshape(3, -1)
        weight[:, self.in_use.ravel() == UNUSED] = 0
        return self.log_shape + sum(weight[self.maps[:, i], i] for i in range(self.maps.shape[1]))

    def log_states(self, log_density: np.ndarray | None = None) -> np.ndarray:
        """(3 levels, K, X, Y, Z) log of π_i(l) f(l, z, y) p(d_i | l, z, y): all of a voxel but its shape."""
        with np.errstate(divide="ignore"):
            log_pi = np.log(np.moveaxis(self.pi.astype(float), -1, 0))
            log_allowed = np.log(
                [[LABELS.is_allowed(l, v > 0, v > 1) for l in range(LABELS.K)] for v in LEVELS]
            )
        out = log_allowed[:, :, None, None, None] + log_pi
        if log_density is not None:
            density = np.where(self.in_use == WITH_DATA, log_density, 0.0)
            x = np.array([LABELS.x_of_l, [LABELS.edema] * LABELS.K, [LABELS.core] * LABELS.K])
            out = out + density[x]
        return out

    def mixture_densities(self, theta: Theta, D: np.ndarray) -> np.ndarray:
        """(mixtures, X, Y, Z) log p(d_i | x)."""
        components = reference.log_components(theta, D.astype(float))
        return np.array([logsumexp(components[LABELS.component_slice(x)], axis=0) for x in range(LABELS.X)])

    # ---- the prior, exactly --------------------------------------------------------------------------

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(np.exp(self.log_maps()))

    def draw_labels(self, rng: np.random.Generator) -> joint.Labels:
        at = min(np.searchsorted(self._cumulative, rng.random(), "right"), len(self.maps) - 1)
        level = self.maps[at].reshape(self.shape)
        weight = np.exp(self.log_states()[np.minimum(level, 1), :, *np.indices(self.shape)])
        cumulative = np.cumsum(weight, -1)
        l = (rng.random(self.shape)[..., None] * cumulative[..., -1:] >= cumulative).sum(-1)
        l[self.in_use == UNUSED] = 0
        return joint.Labels(*(v.astype(np.uint8) for v in (l, level >= 1, level == 2)))

    def draw_theta(self, rng: np.random.Generator) -> Theta:
        """θ from its prior, the means by rejection."""
        p, N = self.prior, len(self.prior.mu0)
        while True:
            mu = p.mu0 + rng.standard_normal((LABELS.Q, N)) / np.sqrt(p.precision)
            if (p.A @ mu.ravel() <= p.b).all():
                break
        C = rng.standard_normal((N, 4, 4, 4)) / np.sqrt(p.bias_precision)
        C[~p.has_bias] = 0
        C[:, 0, 0, 0] = 0
        gamma = Dirichlet(np.full(LABELS.Q, p.alpha0), p.group).sample(rng)
        return Theta(gamma, mu, InverseWishart(p.nu0, p.S0).sample(rng), C)

    def simulate(
        self, theta: Theta, labels: joint.Labels, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """D (N, X, Y, Z), NaN where nothing is seen, and t (Q, X, Y, Z) given θ and the labels."""
        x = mixtures(labels)
        weight = np.where(
            LABELS.x_of_component[:, None, None, None] == x, theta.gamma[:, None, None, None], 0
        )
        q = (rng.random(self.shape) * weight.sum(0) >= np.cumsum(weight, 0)).sum(0)
        noise = np.einsum(
            "...mn,...n->...m",
            np.linalg.cholesky(theta.Sigma)[q],
            rng.standard_normal((*self.shape, theta.N)),
        )
        D = np.moveaxis(theta.mu[q] + noise, -1, 0)
        D = D + np.tensordot(theta.C, reference.basis(self.shape), axes=3)
        seen = self.in_use == WITH_DATA
        t = (np.arange(LABELS.Q)[:, None, None, None] == q) & seen
        return np.where(seen, D, np.nan).astype(np.float32), t.astype(float)


def _unequal(shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """A voxel that takes no part, one without data, and z and y held in some."""
    use, z, y = (
        np.full(shape, value, dtype) for value, dtype in ((1, np.uint8), (-1, np.int8), (-1, np.int8))
    )
    use.flat[1], use.flat[4] = UNUSED, 2
    z.flat[2], z.flat[3], y.flat[5], y.flat[3] = 0, 1, 0, 1
    return {"use": use, "fixed_z": z, "fixed_y": y}


def _near(shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """A region of every second sweep: tumor and core in some voxels, tumor alone or nothing in others."""
    return {"near": np.resize(np.array([0, 2, 1, 2, 0], np.uint8), shape)}


def _resting(shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Two rows without tumor that are drawn now and then."""
    rest = np.zeros(shape[:2], bool)
    rest[0, 0] = rest[1, 0] = True
    return {"rest": rest, "fixed_z": np.where(rest[:, :, None], np.int8(0), np.full(shape, -1, np.int8))}


def _odds(shape: tuple[int, int, int]) -> np.ndarray:
    return np.linspace(-2.3, 0.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _wider(prior: ThetaPrior) -> ThetaPrior:
    """A third contrast, without constraints and, as the second, with a bias field."""
    Q, N = LABELS.Q, 3
    A = np.zeros((len(prior.A), Q, N))
    A[:, :, :2] = prior.A.reshape(-1, Q, 2)
    return replace(
        prior,
        nu0=np.full(Q, N + 4.0),
        S0=np.tile(4.0 * np.eye(N), (Q, 1, 1)),
        A=A.reshape(-1, Q * N),
        mu0=np.array([0.5, -0.3, 0.1]),
        precision=np.array([2.0, 3.0, 2.5]),
        bias_precision=np.linspace(1.0, 4.0, N * 64).reshape(N, 4, 4, 4),
        has_bias=np.array([False, True, True]),
    )


CRBM = (tiny.crbm(1, -1.9), tiny.crbm(2, -0.7))
ROW = (tiny.crbm(3, -1.5, 0.5), tiny.crbm(4, -0.8, 0.5))
POINTED = (tiny.crbm(3, -2.0, 1.5, filters=1, taps=2), tiny.crbm(4, -2.6, 1.5, filters=1, taps=2))
MILD = (tiny.crbm(3, -0.8, 0.8, filters=1, taps=2), tiny.crbm(4, -0.6, 0.8, filters=1, taps=2))
MRF = (FirstOrderMRF(0.3), FirstOrderMRF(0.05))
WEAK_MRF = (FirstOrderMRF(0.04), FirstOrderMRF(0.02))

ENUMERATED = {
    "cRBM": TinyModel((2, 2, 2), CRBM, tiny.prior()),
    "cRBM in a row": TinyModel((1, 1, 6), ROW, tiny.prior()),
    "cRBM with filters of 4 x 4 x 4": TinyModel((1, 2, 4), MILD, tiny.prior()),
    "MRF": TinyModel((2, 2, 2), MRF, tiny.prior()),
    "cRBM on z, MRF on y": TinyModel((2, 2, 2), (CRBM[0], WEAK_MRF[1]), tiny.prior()),
    "held, unseen, unused": TinyModel((2, 2, 2), CRBM, tiny.prior(), **_unequal((2, 2, 2))),
    "flat": TinyModel((2, 1, 2), (FlatPrior(-0.5), FlatPrior(0.2)), tiny.prior()),
    "cRBM and location": TinyModel((2, 2, 2), CRBM, tiny.prior(), location=_odds((2, 2, 2))),
    "MRF and location": TinyModel((2, 2, 2), MRF, tiny.prior(), location=_odds((2, 2, 2))),
}

SHIPPED_SIZE = TinyModel(
    (1, 2, 2), (tiny.crbm(5, -1.5, 0.12, filters=40, taps=7), tiny.crbm(6, -0.8, 0.12, 40, 7)), tiny.prior()
)
"""Filters of the size that has kernels of its own."""

JOINT = {
    "cRBM": TinyModel((2, 2, 3), (tiny.crbm(1, -2.1), POINTED[1]), tiny.prior()),
    "MRF": TinyModel((2, 2, 3), WEAK_MRF, replace(tiny.prior(), has_bias=np.array([True, True]))),
    "cRBM on z, MRF on y, 3 contrasts, held": TinyModel(
        (2, 2, 3), (POINTED[0], WEAK_MRF[1]), _wider(tiny.prior()), **_unequal((2, 2, 3))
    ),
    "a region": TinyModel((2, 2, 3), (tiny.crbm(1, -2.1), POINTED[1]), tiny.prior(), **_near((2, 2, 3))),
    "location": TinyModel(
        (2, 2, 3), (tiny.crbm(1, -2.1), POINTED[1]), tiny.prior(), location=_odds((2, 2, 3))
    ),
    "a region, MRF": TinyModel((2, 2, 3), WEAK_MRF, tiny.prior(), **_near((2, 2, 3))),
    "rows that rest": TinyModel(
        (2, 2, 3), (tiny.crbm(1, -2.1), POINTED[1]), tiny.prior(), **_resting((2, 2, 3))
    ),
}
"""Of 12 voxels, with 63 bias functions for each contrast that has a field."""
