"""Seconds per sweep of the sampler; time per voxel of the passes of both algorithms and of the θ step.

Sweeps run on a whole head with four contrasts, drawn from the model, after a short fit: with tumor considered
in the whole brain (`brain`); near likely tumor alone, as between whole sweeps (`active`); and as during the
burn-in, when most of these draw no voxels of rows far from tumor (`resting`). `run_of_250_s` adds up what the
default settings take of each. The passes run on a head-like ball with four contrasts,
all Gaussians and labels of the table and 64 bias functions; their rival is the same expectation and the same
sums in whole-array numpy, float32. On 1 and 2 threads. `peak_gb` is that of drawing the head, fitting it and
all sweeps. Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import numba as nb
import numpy as np
from threadpoolctl import threadpool_limits
from timing import best

from tumoar.inference import gem, gibbs
from tumoar.io.models import default_model
from tumoar.model import joint
from tumoar.model.bias import cosines
from tumoar.model.conditionals import make_sampler, mode, update_theta
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import build_theta_prior
from tumoar.placement.affine import place_affine
from tumoar.preprocess.case import build_case
from tumoar.simulate import Acquisition, draw_patient
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels

PROJECT = Path(__file__).resolve().parents[1]
LABELS = default_labels()
CONTRASTS = [find_contrast(n) for n in ("T1c", "FLAIR", "T2", "T1")]


def head(shape, rng):
    """Brain in a head in air: structures of the brain mixed, those of the orbit in one corner."""
    x, y, z = np.meshgrid(
        *(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij", sparse=True
    )
    r = np.sqrt(x**2 + y**2 + z**2)
    brain, orbit = r < 0.67, (r >= 0.67) & (y > 0.5) & (np.abs(z) < 0.3)
    pi = np.zeros((*shape, LABELS.K), np.float32)
    for k, s in enumerate(LABELS.structures):
        local = s.side is not None or s.name == "brainstem"
        where = brain if s.in_brain else orbit
        if local and s.in_brain:
            where = brain & (np.abs(z) < 0.2) & (np.abs(x - (k % 3 - 1) * 0.25) < 0.12)
        pi[..., k] = np.where(where, 0.2 + 0.8 * rng.random(), 0)
    pi[..., 0] = np.where(brain, 0.01, 1)
    pi /= pi.sum(-1, keepdims=True)
    D = rng.standard_normal((len(CONTRASTS), *shape), np.float32)
    return joint.build_volume(D, (r < 1.05).astype(np.uint8)), D, pi


def parameters(rng):
    N, Q = len(CONTRASTS), LABELS.Q
    a = 0.3 * rng.standard_normal((Q, N, N))
    C = 0.05 * rng.standard_normal((N, 4, 4, 4))
    C[:, 0, 0, 0] = 0
    gamma = (1 / LABELS.G)[LABELS.x_of_component]
    return Theta(gamma, rng.standard_normal((Q, N)), a @ a.swapaxes(1, 2) + 0.1 * np.eye(N), C)


def in_numpy(D, pi, groups, theta, planes):
    """The expectation and its sums over some planes, in whole arrays."""
    d = D[:, planes].reshape(len(D), -1)
    p = pi[planes].reshape(-1, LABELS.K)
    shape = D[:, planes].shape[1:]
    a, b, c = (cosines(n)[:m].astype(np.float32) for n, m in zip(D.shape[1:], shape))
    field = np.einsum(
        "nabc,xa,yb,zc->nxyz", theta.C.astype(np.float32), a[:, :4], b[:, :4], c[:, :4], optimize=True
    )
    r = d - field.reshape(len(D), -1)
    t = np.empty((LABELS.Q, d.shape[1]), np.float32)
    for q in range(LABELS.Q):
        x = groups.x_of_q[q]
        j = slice(groups.start[x], groups.start[x + 1])
        L = np.linalg.inv(np.linalg.cholesky(theta.Sigma[q])).astype(np.float32)
        e = L @ (r - theta.mu[q][:, None].astype(np.float32))
        prior = p[:, groups.column[j]] @ groups.weight[j]
        t[q] = theta.gamma[q] * np.diag(L).prod() * np.exp(-0.5 * (e * e).sum(0)) * prior
    t /= t.sum(0) + 1e-30
    second = np.einsum("qi,mi,ni->qmn", t, d, d, optimize=True)
    cos = np.einsum("qxyz,xa,yb,zc->qabc", t.reshape(-1, *shape), a, b, c, optimize=True)
    return t.sum(1), t @ d.T, second, cos


def drawn_chain() -> tuple[gibbs.Chain, gibbs.ChainState]:
    """A chain on a patient drawn from the model, some sweeps after its start."""
    model = default_model()
    images, _ = draw_patient(model, [Acquisition(c.name) for c in CONTRASTS], seed=4)
    case = build_case(images, register=False)
    config = Config(gem=GemConfig(outer_iterations=3, em_iterations=10))
    placement = place_affine(case, model.atlas)
    fit = gem.fit(case, model.atlas, placement.matrix, model.tumor_mm3, config.gem)
    shapes = (model.shape_z, model.shape_y)
    chain, state = gibbs.initialize_chain(case, fit, shapes, model.tumor_mm3, config, seed=1)
    for _ in range(chain.schedule.full_every):
        state, _ = gibbs.sweep(chain, state)
    return chain, state


def kinds(config: GibbsConfig) -> Iterator[str]:
    """What is drawn in each sweep of a run: all, with tumor considered everywhere or not, or not all."""
    for sweep in range(config.burn_in + config.samples):
        since_full = sweep % config.full_every
        rests = since_full > 1 and since_full % config.rest_every > 0 and sweep < config.burn_in
        yield "brain" if since_full == 0 else "resting" if rests else "active"


def sweep_figures(threads: list[int], repeats: int) -> dict[str, float]:
    """Seconds per sweep, whole and active; of a run with the default settings; and memory."""
    chain, whole = drawn_chain()
    figures: dict[str, float] = {}
    for n in threads:
        nb.set_num_threads(n)
        active, _ = gibbs.sweep(chain, whole)
        resting, _ = gibbs.sweep(chain, active)
        seconds = {name: best(lambda s=s: gibbs.sweep(chain, s), repeats)
                   for name, s in (("brain", whole), ("active", active), ("resting", resting))}  # fmt: skip
        figures |= {f"{name}_sweep_s_{n}": value for name, value in seconds.items()}
        figures[f"run_of_250_s_{n}"] = sum(seconds[kind] for kind in kinds(Config().gibbs))
    figures |= {f"{name}_sweep_s": figures[f"{name}_sweep_s_{threads[-1]}"] for name in seconds}
    figures["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small ball, and no sweeps")
    options = parser.parse_args()
    shape, repeats = ((60, 72, 60), 2) if options.quick else ((181, 217, 181), 5)
    threads = [1] if nb.config.NUMBA_NUM_THREADS < 2 else [1, 2]
    figures: dict[str, float] = {}
    if not options.quick:  # first: the memory of the ball below is not theirs
        with threadpool_limits(1, "blas"):
            figures |= sweep_figures(threads, repeats)
    rng = np.random.default_rng(0)
    v, D, pi = head(shape, rng)
    theta = parameters(rng)
    flat, free = joint.compile_groups(LABELS, flat=joint.Flat()), joint.compile_groups(LABELS)
    field = np.full(shape, -2, np.float32)
    before = joint.Labels(*(np.zeros(shape, np.uint8) for _ in range(3)))
    L = np.empty((*shape, LABELS.K), np.float32)
    prior = joint.pack_prior(v, pi)
    passes = {
        "expect": lambda: joint.expect(v, pi, flat, theta),
        "draw": lambda: joint.draw(v, prior, free, theta, (field, field), before, (1, 1)),
        "most_probable": lambda: joint.find_most_probable(v, pi, flat, theta),
        "class_likelihoods": lambda: joint.class_likelihoods(v, flat, theta, L),
    }
    count = int((v.use == 1).sum())
    figures["voxels"] = count
    with threadpool_limits(1, "blas"):
        for n in threads:
            nb.set_num_threads(n)
            for name, run in passes.items():
                figures[f"{name}_ns_{n}"] = best(run, repeats) / count * 1e9
        planes = slice(0, max(1, shape[0] // 12))
        rival = best(lambda: in_numpy(D, pi, flat, theta, planes), 1)
        figures["numpy_expect_ns"] = rival / D[0, planes].size * 1e9
        figures["numpy_ratio"] = figures["numpy_expect_ns"] / figures["expect_ns_1"]
        moments, _ = joint.expect(v, pi, flat, theta)
        prior = build_theta_prior(
            LABELS, CONTRASTS, np.zeros(4), np.ones(4), count, np.full(LABELS.X, count / 12)
        )
        start = update_theta(theta, moments, prior, mode)
        figures["theta_mode_ms"] = 1e3 * best(lambda: update_theta(start, moments, prior, mode), repeats)
        draw = make_sampler(rng)
        figures["theta_draw_ms"] = 1e3 * best(lambda: update_theta(start, moments, prior, draw), repeats)
    figures = {k: round(float(f), 2) for k, f in figures.items()}
    if not options.quick:
        rows = "\n".join(f"| {name} | {value} |" for name, value in figures.items())
        out = PROJECT / "research" / "results" / "sampler.md"
        out.parent.mkdir(parents=True, exist_ok=True)
        what = " ".join(__doc__.split())
        page = f"# Sweeps and voxel passes\n\n{what}\n\n| figure | value |\n|---|---|\n{rows}\n"
        out.write_text(page, encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
