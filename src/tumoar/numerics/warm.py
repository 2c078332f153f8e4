"""Compile ahead what `segment` needs: `python -m tumoar.numerics.warm CONTRASTS SHARE…`.

Every kernel is run on a tiny problem, with arrays of the types that a patient has. The kernels of the voxel
passes depend on the number of contrasts. A process writes one character for every step it has finished, and
ends when its standard input is closed.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numba as nb
import numpy as np

from tumoar.numerics import (
    convolve,
    convolve_field,
    histogram,
    jit,
    tetra_cost,
    tetra_prior,
    tetra_raster,
    voxels,
    voxels_draw,
    voxels_em,
)

Step = Callable[[int], object]

NODES = np.array([[0.0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 4]])
TETRAHEDRA = np.array([[0, 1, 2, 3]])
ALPHA = np.full((4, 2), 0.5, np.float32)
SHAPE = (5, 5, 5)


def _raster(contrasts: int) -> None:
    tetra_raster.rasterize(NODES, TETRAHEDRA, ALPHA, SHAPE)


def _placement(contrasts: int) -> None:
    q, bins, M = np.ones((2, 3)), np.zeros((2, contrasts), np.uint8), np.eye(3, 4)
    P = np.full((*SHAPE, 2), 0.5, np.float32)
    histogram.joint_counts(q, bins, M, P, 3)
    histogram.mixture_score(q, bins, M, P, np.ones((contrasts, 3, 2), np.float32))


def _data_cost(contrasts: int) -> None:
    tetra_cost.data_cost(NODES, TETRAHEDRA, ALPHA, np.ones((*SHAPE, 2), np.float32), 0)


def _curvature(contrasts: int) -> None:
    tetra_cost.data_fisher(NODES, TETRAHEDRA, ALPHA, np.ones((*SHAPE, 2), np.float32), 0)
    _, shares = tetra_prior.elastic_energy(NODES, NODES, TETRAHEDRA, 1.0)
    tetra_prior.elastic_curvature(NODES, TETRAHEDRA, 1.0)
    tetra_cost.gather(shares, tetra_cost.build_incidence(TETRAHEDRA, len(NODES)))
    tetra_prior.shorten(NODES, np.zeros_like(NODES), TETRAHEDRA, 0.35)


def _scene(contrasts: int) -> tuple[voxels.Volume, voxels.Groups, voxels.Gaussians, np.ndarray]:
    """Two voxels to a row, one mixture of one component."""
    use, one = np.ones((2, 2, 2), np.uint8), np.zeros(1, np.int64)
    cosines = np.ones((2, voxels.HARMONICS))
    v = voxels.build_volume(np.zeros((contrasts, *use.shape), np.float32), use, (cosines, cosines, cosines))
    groups = voxels.Groups(one, np.array([0, 1]), one, np.ones(1, np.float32), one, one)
    C = np.zeros((contrasts, *(voxels.FUNCTIONS,) * 3))
    g = voxels.whiten_gaussians(np.ones(1), np.zeros((1, contrasts)), np.eye(contrasts)[None], C, v.center)
    return v, groups, g, np.ones((*use.shape, 1), np.float32)


def _expectation(contrasts: int) -> None:
    v, groups, g, pi = _scene(contrasts)
    voxels_em.expect(v, pi, groups, g)


def _class_densities(contrasts: int) -> None:
    v, groups, g, pi = _scene(contrasts)
    voxels_em.class_densities(v, groups, g, np.empty_like(pi), 0)


def _most_probable(contrasts: int) -> None:
    v, groups, g, pi = _scene(contrasts)
    voxels_draw.find_most_probable(v, pi, groups, g, _labels(v))


def _draw(contrasts: int) -> None:
    v, groups, g, pi = _scene(contrasts)
    voxels.pack(v, pi > 0)
    prior = voxels.pack(v, np.ones((*v.use.shape, 2), np.float32)[..., :1])
    fields = np.zeros(v.use.shape, np.float32), np.zeros(v.use.shape, np.float32)
    voxels_draw.draw(v, prior, groups, g, fields, np.zeros_like(v.use), (0, 0), _labels(v))


def _votes(contrasts: int) -> None:
    at, counts = np.zeros(1, np.int64), np.zeros((1, 1), np.uint8)
    labels = [x.ravel() for x in _labels(_scene(contrasts)[0])]
    for x in labels:
        x.flags.writeable = False
    voxels_draw.count_labels(at, labels[0], labels[1], labels[2], counts, counts[0].copy(), counts[0].copy())


def _labels(v: voxels.Volume) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column, tumor and core of every voxel."""
    return np.zeros(v.use.shape, np.uint8), np.zeros(v.use.shape, np.uint8), np.zeros(v.use.shape, np.uint8)


def _fields(contrasts: int) -> None:
    filters = convolve.pack(np.ones((convolve.M, *(convolve.R,) * 3)), np.zeros(convolve.M))
    v = np.zeros((16, 16, 16), np.bool_)
    region = np.zeros_like(v)
    region[7:9, 7:9, 7:9] = True  # a part of the grid, which is not contiguous
    convolve_field.draw_field(v, region, filters, 0.0, 1)


SHARES: tuple[tuple[Step, ...], ...] = (
    (_raster, _placement, _expectation, _class_densities, _data_cost, _curvature),
    (_fields, _most_probable, _draw, _votes),
)
"""Steps of each process, those that a run needs first in front; both take about as long."""
STEPS = sum(map(len, SHARES))
OBJECTS = 50_000
"""New objects before Python looks for cycles; at its usual 700, a tenth of the time goes into that."""


def run(contrasts: int, share: int, told: Callable[[], object] = lambda: None) -> None:
    """Compile one share of the kernels, and note in the cache that this is done; one process at a time."""
    with ExitStack() as stack:
        mark = None if jit.PLACE is None else _mark(jit.PLACE.folder, contrasts, share)
        if mark is not None:
            lock = stack.enter_context(mark.with_name(f"{mark.name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        for step in SHARES[share]:
            if mark is None or not mark.exists():
                step(contrasts)
            told()
        if mark is not None:
            mark.touch()


def is_warm(contrasts: int) -> bool:
    """Whether all kernels are in the cache, or there is none."""
    place = jit.PLACE
    return place is None or all(
        _mark(place.folder, contrasts, share).exists() for share in range(len(SHARES))
    )


def _mark(folder: Path, contrasts: int, share: int) -> Path:
    return folder / f"warm-{_state()[:16]}-{contrasts}-{share}"


@cache
def _state() -> str:
    """Digest of all that compiled kernels depend on."""
    codegen = nb.core.registry.cpu_target.target_context.codegen()
    parts = (jit.digest_sources("warm"), *jit.identify_makers(codegen))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _follow() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Compile these shares for this number of contrasts."""
    threading.Thread(target=_follow, daemon=True).start()
    gc.set_threshold(OBJECTS)
    contrasts, *shares = map(int, arguments)
    for share in shares:
        run(contrasts, share, lambda: os.write(sys.stdout.fileno(), b"."))


if __name__ == "__main__":
    main(sys.argv[1:])
