"""Threads and memory of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import SimpleITK as sitk  # noqa: N813
from scipy.linalg import cho_factor, cho_solve

from tumoar.geometry.image import Case
from tumoar.model.generative import Model
from tumoar.numerics.threads import use_threads
from tumoar.vocabulary.errors import ResourceError

BLAS_BYTES = 256 * 1024**2
"""More than OpenBLAS allocates for its buffers."""


def limit_threads(count: int | None) -> int:
    """Limit the threads of our kernels and of SimpleITK, which otherwise uses all cores."""
    used = use_threads(count)
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(used)
    return used


@contextmanager
def limited_threads(count: int | None) -> Iterator[None]:
    """Limit threads within a block and restore the previous limits afterwards."""
    ours, theirs = use_threads(None), sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    try:
        limit_threads(count)
        yield
    finally:
        use_threads(ours)
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(theirs)


def warm_blas() -> None:
    """Make OpenBLAS of numpy and scipy allocate its buffers now: out of memory, it would retry forever."""
    np.empty(BLAS_BYTES, np.uint8)  # a refusal if memory is not sufficient
    np.linalg.solve(np.eye(2), np.ones(2))
    cho_solve(cho_factor(np.eye(2)), np.ones(2))


def forecast_gb(case: Case, model: Model) -> float:
    """Forecast peak memory from the number of voxels, contrasts and structures."""
    N, K = len(case.contrasts), model.labels.K
    per_voxel = (
        4 * 2 * N + 4 * K + 4 * 2 * 12 + K + 40
    )  # images, π, likelihoods twice, votes, labels and fields
    return 0.5 + per_voxel * int(np.prod(case.grid.shape)) / 1e9


def require_memory(case: Case, model: Model, limit_gb: float | None) -> None:
    """Refuse a case that does not fit into memory, before any computation."""
    needed = forecast_gb(case, model)
    have = psutil.virtual_memory().available / 1e9  # includes the file cache
    limit = min(limit_gb, have) if limit_gb else have
    if needed > limit:
        raise ResourceError(
            "memory",
            f"this case needs about {needed:.1f} GB of memory",
            found=f"{limit:.1f} GB",
            do="close other programs, or run it on a larger machine",
        )
