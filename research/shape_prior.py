"""What the cRBM has learned: free energies of true and altered shapes, free sweeps, samples, filters.

The free energy per voxel above the empty map is compared between held-out shapes, the same shapes with
their blocks shuffled, eroded, dilated, and spheres of equal volume. Free sweeps (no data) from real shapes of
different size and from the empty map show whether the prior keeps what it should, beside those of the
first-order MRF; free sweeps from random blobs are samples to look at, beside real shapes of that size, and
both are measured: how much surface they have, and how much of them is lobes and corners.
Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, distance_transform_edt, gaussian_filter, label

sys.path.insert(0, str(Path(__file__).parent))
from shape_cases import MODEL, PROJECT, load_models, shapes_of

from tumoar.model.shape.base import sample_shape
from tumoar.model.shape.mrf import FirstOrderMRF

mpl.use("Agg")
import matplotlib.pyplot as plt

BLOCK = 8
BLOBS = (6_000, 25_000, 60_000)  # mm³, where the samples start
MEASURED = 6  # samples, and held-out shapes
PEEL = 4  # mm: lobes and corners are what a ball of this radius does not reach
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of held-out volumes: shapes under free sweeps
BETA = 0.5  # of the MRF beside them
ABOUT = """Free energy per voxel favors whatever has less surface per voxel: dilated shapes and spheres of
equal volume may lie below the true ones. That says which single shape is most probable, not what shapes are
drawn: there is one sphere, and a great many shapes with the surface of a tumor. A shape that stays what it
is has a volume and a Dice near 1 after free sweeps; a prior with surface tension shrinks it. The held-out
shapes are all of the model's card, also those looked at while training rules were chosen (`SEEN` in
`research/denoise.py`)."""


def shuffled(v, rng):
    """The same voxels with their blocks of 8³ in random order."""
    v = np.pad(v, [(0, -n % BLOCK) for n in v.shape])
    n = [k // BLOCK for k in v.shape]
    blocks = (
        v.reshape(n[0], BLOCK, n[1], BLOCK, n[2], BLOCK)
        .transpose(0, 2, 4, 1, 3, 5)
        .reshape(-1, *(BLOCK,) * 3)
    )
    blocks = blocks[rng.permutation(len(blocks))].reshape(*n, *(BLOCK,) * 3)
    return blocks.transpose(0, 3, 1, 4, 2, 5).reshape(v.shape)


def sphere(volume):
    radius = (3 * volume / (4 * np.pi)) ** (1 / 3)
    x = np.indices((2 * int(radius) + 3,) * 3) - int(radius) - 1
    return (x**2).sum(0) <= radius**2


def altered(v, rng):
    v = np.pad(v.astype(bool), 2)
    return {
        "true": v, "shuffled": shuffled(v, rng), "eroded": binary_erosion(v, iterations=2),
        "dilated": binary_dilation(v, iterations=2), "sphere": sphere(v.sum()),
    }  # fmt: skip


def kept(prior, shape, sweeps, rng):
    """Volume relative to the shape's, Dice and share of the largest part after free sweeps."""
    v = np.pad(shape.v, 16).astype(bool)
    x = sample_shape(prior, v, sweeps, rng)
    parts = np.bincount(label(x)[0].ravel())[1:]
    largest = float(parts.max() / parts.sum()) if len(parts) else 0.0
    return {
        "volume": round(float(x.sum() / v.sum()), 3),
        "dice": round(dice(v, x), 3),
        "largest_part": round(largest, 3),
    }


def dice(a, b):
    return float(2 * (a & b).sum() / max(1, a.sum() + b.sum()))


def form(v):
    """Surface relative to that of a sphere, and the share of the volume that is lobes and corners, in %."""
    v = np.pad(v, PEEL + 1).astype(bool)
    surface = FirstOrderMRF(1.0)  # counts unequal pairs of neighbors in 13 directions
    within = distance_transform_edt(v) > PEEL
    reached = distance_transform_edt(~within) <= PEEL if within.any() else np.zeros_like(v)
    return [surface.energy(v) / surface.energy(sphere(v.sum())), 100 * (1 - (reached & v).sum() / v.sum())]


def forms(model, held, sweeps, rng):
    """Median form of held-out shapes, of what free sweeps make of them, and of blobs before and after."""
    some = [np.pad(held[i].v, 12).astype(bool) for i in rng.permutation(len(held))[:MEASURED]]
    blobs = [blob(int(v.sum()), rng) for v in some]
    after = {
        "held-out shapes": some,
        "the same after free sweeps": [],
        "blobs": blobs,
        "samples from them": [],
    }
    for here, there in (("held-out shapes", "the same after free sweeps"), ("blobs", "samples from them")):
        after[there] = [sample_shape(model, v, sweeps, rng) for v in after[here]]
    return {k: np.median([form(v) for v in x if v.any()], axis=0).round(2).tolist() for k, x in after.items()}


def picture(model, path):
    """Middle slices of all filters that are not zero, strongest first."""
    strength = np.abs(model.w).sum((1, 2, 3))
    order = [m for m in np.argsort(-strength, kind="stable") if strength[m]]
    figure, axes = plt.subplots(-(-len(order) // 8), 8, figsize=(8, 0.7 * -(-len(order) // 8)))
    for axis in axes.ravel():
        axis.set_axis_off()
    for axis, m in zip(axes.ravel(), order):
        w = model.w[m]
        limit = np.abs(w).max()
        gap = np.full((len(w), 1), np.nan)
        axis.imshow(np.hstack([w[3], gap, w[:, 3]]), cmap="RdBu_r", vmin=-limit, vmax=limit)
    figure.tight_layout(pad=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def blob(volume, rng):
    """The densest part of smooth noise, drawn to the middle."""
    n = 2 * int(1.6 * (3 * volume / (4 * np.pi)) ** (1 / 3)) + 24
    distance = np.sqrt(((np.indices((n,) * 3) - n // 2) ** 2).sum(0))
    rough = gaussian_filter(rng.standard_normal((n,) * 3), 5)
    score = 6 * rough / rough.std() - distance
    parts, _ = label(score >= np.partition(score.ravel(), -volume)[-volume])
    return parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])


def samples(model, held, sweeps, path, rng):
    """Middle slices of blobs before and after free sweeps, and of the real shapes nearest in volume."""
    figure, axes = plt.subplots(len(BLOBS), 7, figsize=(12, 1.8 * len(BLOBS)))
    for volume, row in zip(BLOBS, axes):
        v = blob(volume, rng)
        out = sample_shape(model, v, sweeps, rng)
        real = np.pad(min(held, key=lambda s: abs(s.volume - volume)).v, 8)
        for axis, x in zip(row, (v[len(v) // 2], *middle_slices(out), *middle_slices(real))):
            axis.imshow(x, cmap="gray_r", interpolation="nearest", vmin=0, vmax=1)
            axis.set_axis_off()
    for axis, title in zip(axes[0], ("start", "sample", "", "", "real", "", "")):
        axis.set_title(title)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def middle_slices(x):
    """Three planes through the center of mass, or the middle if there is none."""
    at = np.round(np.argwhere(x).mean(0)).astype(int) if x.any() else np.array(x.shape) // 2
    return x[at[0]], x[:, at[1]], x[:, :, at[2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--maps", default="zy")
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--largest", type=int, default=None, help="leave out shapes above this volume in mm³")
    options = parser.parse_args()
    n, sweeps = (1, 5) if options.quick else (options.shapes, options.sweeps)
    models, cards = load_models(options.model)
    figures, lines = {}, ["# What the shape priors have learned", "", ABOUT, ""]
    for name in options.maps:
        model = models[name]
        train, held = shapes_of(name, cards[name])
        largest = 10_000 if options.quick else options.largest
        if largest:
            train, held = ([s for s in x if s.volume < largest] for x in (train, held))
        rng = np.random.default_rng(2)
        rises = [
            {k: model.free_energy_rise(x) for k, x in altered(held[i].v, rng).items() if x.any()}
            for i in rng.permutation(len(held))[:n]
        ]
        seen = np.mean([model.free_energy_rise(train[i].v) for i in rng.permutation(len(train))[:n]])
        means = {k: float(np.mean([r[k] for r in rises if k in r])) for k in rises[0]}
        lowest = np.mean([min(r, key=lambda k: r[k]) in ("true", "sphere") for r in rises])
        n_held = len(rises)
        by_volume = sorted(held, key=lambda s: s.volume)
        started = [by_volume[int(q * len(held))] for q in (QUANTILES[:1] if options.quick else QUANTILES)]
        stay = [kept(model, s, sweeps, rng) for s in started]
        rivals = [kept(FirstOrderMRF(BETA), s, sweeps, rng) for s in started]
        risen = sample_shape(model, np.zeros((48,) * 3, bool), sweeps, rng)
        figures[name] = {
            "free_energy": {k: round(x, 3) for k, x in means.items()} | {"training": round(float(seen), 3)},
            "true_or_sphere_lowest": round(float(lowest), 2),
            "kept": {s.name: {"mm3": s.volume} | k | {"mrf_dice": r["dice"]}
                     for s, k, r in zip(started, stay, rivals)},
            "risen_from_empty": int(risen.sum()),
            "form": {} if options.quick else forms(model, held, sweeps, rng),
        }  # fmt: skip
        f = figures[name]
        lines += [
            f"## Map {name}", "",
            f"Free energy per voxel above the empty map, mean of {n_held} held-out shapes"
            + (f" below {largest} mm³" if largest else "") + ":", "",
            "| " + " | ".join(f["free_energy"]) + " |", "|" + "---|" * len(f["free_energy"]),
            "| " + " | ".join(str(x) for x in f["free_energy"].values()) + " |", "",
            f"{sweeps} free sweeps from held-out shapes, and from the empty map of 48³ voxels "
            f"({f['risen_from_empty']} voxels at the end):", "",
            f"| held-out shape | mm³ | volume | Dice | largest part | Dice of the MRF (β = {BETA}) |",
            "|---|---|---|---|---|---|",
            *(f"| {s} | {k['mm3']} | x {k['volume']} | {k['dice']} | {k['largest_part']} | {k['mrf_dice']} |"
              for s, k in f["kept"].items()), "",
            f"Form of {MEASURED} held-out shapes and of as many samples, medians: surface relative to that "
            f"of a sphere, and the share of the volume that a ball of {PEEL} mm inside does not reach:", "",
            "| | surface | lobes and corners, % |", "|---|---|---|",
            *(f"| {k} | {x[0]} | {x[1]} |" for k, x in f["form"].items()), "",
            "Filters that are not zero, strongest first, two middle slices each (red: positive):", "",
            f"![filters](../figures/filters_{name}.png)", "",
            f"Samples: random blobs of {', '.join(f'{x // 1000}' for x in BLOBS)} cm³ after {sweeps} "
            "free sweeps, and held-out shapes of about that volume, three slices each:", "",
            f"![samples](../figures/samples_{name}.png)", "",
        ]  # fmt: skip
        if not options.quick:
            picture(model, PROJECT / "research" / "figures" / f"filters_{name}.png")
            samples(model, held, sweeps, PROJECT / "research" / "figures" / f"samples_{name}.png", rng)
    if not options.quick:
        out = PROJECT / "research" / "results" / "shape_prior.md"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
