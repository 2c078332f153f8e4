"""What the cRBM has learned: free energies of true and altered shapes, free sweeps, samples, filters.

The free energy per voxel above the empty map is compared between held-out shapes, the same shapes with
their blocks shuffled, eroded, dilated, and spheres of equal volume. Free sweeps (no data) from a real
shape and from the empty map show whether the prior keeps what it should; free sweeps from spheres are
samples to look at. Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, label
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parent))
from shape_cases import MODEL, PROJECT, load_models, shapes_of

mpl.use("Agg")
import matplotlib.pyplot as plt

BLOCK = 8
SPHERES = (4_000, 12_000)  # mm³, where the samples start


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


def free_sweeps(model, v, sweeps, rng):
    everywhere = np.ones(v.shape, bool)
    for _ in range(sweeps):
        v = rng.random(v.shape, np.float32) < expit(model.field(v, everywhere, int(rng.integers(2**63))))
    return v


def dice(a, b):
    return float(2 * (a & b).sum() / max(1, a.sum() + b.sum()))


def picture(model, path):
    """Middle slices of all filters, strongest first."""
    order = np.argsort(-np.square(model.w).sum((1, 2, 3)))
    figure, axes = plt.subplots(5, 8, figsize=(8, 5.2))
    for axis, m in zip(axes.ravel(), order):
        w = model.w[m]
        limit = np.abs(w).max()
        axis.imshow(np.concatenate([w[3], w[:, 3]], 1), cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def samples(model, sweeps, path, rng):
    """Middle slices of spheres after free sweeps."""
    figure, axes = plt.subplots(len(SPHERES), 4, figsize=(8, 4.2))
    for volume, row in zip(SPHERES, axes):
        v = np.pad(sphere(volume), 12)
        out = free_sweeps(model, v, sweeps, rng)
        middle = v.shape[0] // 2
        for axis, x in zip(row, (v[middle], out[middle], out[:, middle], out[:, :, middle])):
            axis.imshow(x, cmap="gray_r", interpolation="nearest", vmin=0, vmax=1)
            axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)


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
    figures, lines = {}, ["# What the shape priors have learned", ""]
    for name in options.maps:
        model = models[name]
        train, held = shapes_of(name, cards[name])
        largest = 10_000 if options.quick else options.largest
        if largest:
            train, held = ([s for s in x if s.volume < largest] for x in (train, held))
        rng = np.random.default_rng(2)
        rises = [
            {k: model.rise(x) for k, x in altered(held[i].v, rng).items() if x.any()}
            for i in rng.permutation(len(held))[:n]
        ]
        seen = np.mean([model.rise(train[i].v) for i in rng.permutation(len(train))[:n]])
        means = {k: float(np.mean([r[k] for r in rises if k in r])) for k in rises[0]}
        lowest = np.mean([min(r, key=lambda k: r[k]) in ("true", "sphere") for r in rises])
        middle = sorted(held, key=lambda s: s.volume)[len(held) // 3]
        n_held = len(rises)
        v = np.pad(middle.v, 16).astype(bool)
        kept = free_sweeps(model, v, sweeps, rng)
        risen = free_sweeps(model, np.zeros_like(v), sweeps, rng)
        parts = np.bincount(label(kept)[0].ravel())[1:]
        figures[name] = {
            "free_energy": {k: round(x, 3) for k, x in means.items()} | {"training": round(float(seen), 3)},
            "true_or_sphere_lowest": round(float(lowest), 2),
            "kept_volume": round(float(kept.sum() / v.sum()), 3),
            "kept_dice": round(dice(v, kept), 3),
            "kept_largest_part": round(float(parts.max() / parts.sum()), 3) if len(parts) else 0.0,
            "risen_from_empty": int(risen.sum()),
        }
        f = figures[name]
        lines += [
            f"## Map {name}", "",
            f"Free energy per voxel above the empty map, mean of {n_held} held-out shapes"
            + (f" below {largest} mm³" if largest else "") + ":", "",
            "| " + " | ".join(f["free_energy"]) + " |", "|" + "---|" * len(f["free_energy"]),
            "| " + " | ".join(str(x) for x in f["free_energy"].values()) + " |", "",
            f"After {sweeps} free sweeps from a held-out shape of {middle.volume} mm³: "
            f"volume x {f['kept_volume']}, Dice {f['kept_dice']}, "
            f"largest part {f['kept_largest_part']}. From the empty map: "
            f"{f['risen_from_empty']} voxels.", "",
            "Filters, strongest first, two middle slices each:", "",
            f"![filters](../figures/filters_{name}.png)", "",
            f"Samples: spheres of {' and '.join(f'{x // 1000} cm³' for x in SPHERES)} (left) after {sweeps} "
            "free sweeps, three middle slices:", "", f"![samples](../figures/samples_{name}.png)", "",
        ]  # fmt: skip
        if not options.quick:
            picture(model, PROJECT / "docs" / "figures" / f"filters_{name}.png")
            samples(model, sweeps, PROJECT / "docs" / "figures" / f"samples_{name}.png", rng)
    if not options.quick:
        out = PROJECT / "docs" / "results" / "shape_prior.md"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
