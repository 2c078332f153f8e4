"""Time of one field draw of the cRBM: tumor + 10 mm, whole brain; dense rival; 1 and 2 threads.

The volume is 160x192x160 with a tumor-like blob of 60 cm³ and 0.2 % salt noise. The dense rival is one
FFT convolution per filter, forward and back, on the box of the smaller region. The core's peak is that of a
single-precision matrix product on one thread; `peak_ratio` is what a dense method at that peak would take,
over what the field draw takes. `shipped_*` are the same draws with the trained priors of the package. `load`
is the machine's load when the run began: above 0, other processes share its cores, and two threads gain less.

Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numba as nb
import numpy as np
from scipy.fft import irfftn, next_fast_len, rfftn
from scipy.ndimage import distance_transform_edt, gaussian_filter
from threadpoolctl import threadpool_limits
from timing import best

from tumoar.io.shapes import section_shape
from tumoar.io.store import load_sections
from tumoar.numerics.convolve import REACH, M, R, pack
from tumoar.numerics.convolve_field import draw_field

PROJECT = Path(__file__).resolve().parents[1]
SHIPPED = PROJECT / "src" / "tumoar" / "data" / "shape.npz"
SHAPE = (160, 192, 160)


def case(rng):
    x = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in SHAPE), indexing="ij", sparse=True)
    brain = sum(((g - n / 2) / (0.43 * n)) ** 2 for g, n in zip(x, SHAPE)) < 1
    distance = np.sqrt(sum((g - c) ** 2 for g, c in zip(x, (88, 119, 58))))
    rough = gaussian_filter(rng.standard_normal(SHAPE, np.float32), 6)
    score = np.where(brain, -distance + 9 * rough / rough.std(), -np.inf)
    tumor = score >= np.partition(score.ravel(), -60_000)[-60_000]
    return tumor | (brain & (rng.random(SHAPE) < 0.002)), distance_transform_edt(~tumor) <= 10, brain


def dense_filters(rng):
    """Smooth random filters without relation, and biases: no sums are shared, and a fifth of units is on."""
    w = gaussian_filter(rng.standard_normal((M, R, R, R)).astype(np.float32), (0, 0.8, 0.8, 0.8))
    w *= np.float32(0.02) / w.std()
    return w, rng.normal(-1.5, 0.7, M)


def peak_gflops():
    """Of one thread: the best of several single-precision matrix products."""
    n = 1024
    a, b = (np.random.default_rng(k).random((n, n), np.float32) for k in range(2))
    with threadpool_limits(1):
        return 2 * n**3 / best(lambda: a @ b, 5) / 1e9


def dense(v, w, rng):
    """Forward and backward FFT convolutions of the same box with every filter."""
    size = [next_fast_len(n, real=True) for n in v.shape]
    V = rfftn(v.astype(np.float32), size)
    total = np.zeros_like(V)
    for f in w.repeat(2, 1).repeat(2, 2).repeat(2, 3):
        F = rfftn(f, size)
        c = irfftn(V * F.conj(), size)
        h = rng.random(c.shape, np.float32) < 1 / (1 + np.exp(-c))
        total += rfftn(h.astype(np.float32), size) * F
    return irfftn(total, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    repeats = 1 if options.quick else 5
    load = os.getloadavg()[0]
    rng = np.random.default_rng(0)
    v, near, brain = case(rng)
    w, b = dense_filters(rng)
    filters = pack(w, b)
    box = tuple(slice(max(0, p.min() - REACH), p.max() + REACH + 1) for p in np.nonzero(near))
    nb.set_num_threads(1)
    figures = {
        "active_s": best(lambda: draw_field(v, near, filters, -0.7, 1), repeats),
        "brain_s": best(lambda: draw_field(v, brain, filters, -0.7, 1), repeats),
        "dense_s": best(lambda: dense(v[box], w, rng), 1),
    }
    figures["dense_ratio"] = figures["dense_s"] / figures["active_s"]
    places = np.prod([n.stop - n.start - REACH for n in box])
    figures["peak_gflops"] = peak_gflops()
    figures["dense_equivalent_gflops"] = 4 * places * M * R**3 / figures["active_s"] / 1e9
    figures["peak_ratio"] = figures["dense_equivalent_gflops"] / figures["peak_gflops"]
    sections = load_sections(SHIPPED)
    for name in "zy":
        model = section_shape(sections, f"shape_{name}", SHIPPED)
        for where, region in (("active", near), ("brain", brain)):
            seconds = best(lambda m=model, r=region: draw_field(v, r, m.filters, m.a, 1), repeats)
            figures[f"shipped_{name}_{where}_s"] = seconds
    if nb.config.NUMBA_NUM_THREADS > 1:
        nb.set_num_threads(2)
        for name, region in (("active", near), ("brain", brain)):
            seconds = best(lambda region=region: draw_field(v, region, filters, -0.7, 1), repeats)
            figures[f"{name}_speedup_2_threads"] = figures[f"{name}_s"] / seconds
    figures |= {"cores": os.cpu_count(), "load": load}
    figures = {k: round(float(x), 4) for k, x in figures.items()}
    if not options.quick:
        rows = [f"| {k} | {x} |" for k, x in figures.items()]
        about = __doc__.split("\n\n")[1].strip()
        text = ["# One field draw of the cRBM", "", about, "", "| figure | value |", "|---|---|", *rows, ""]
        (PROJECT / "research" / "results" / "crbm.md").write_text("\n".join(text), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
