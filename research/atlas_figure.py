"""The atlas in axial, sagittal and coronal view: mesh lines over label probabilities, as in the paper.

    python research/atlas_figure.py [--quick] [-o research/figures/atlas.png]

Colors as in the paper: yellow eye fluid, orange eye tissue, red optic nerves and chiasm, green brainstem,
lilac hippocampi, shades of blue other labels. `--quick` draws at half the resolution into a temporary file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb

from tumoar.io.store import load_atlas
from tumoar.numerics.tetra_raster import rasterize

ROOT = Path(__file__).resolve().parents[1]
COLORS = {
    "background": "#0a1022",
    "white matter": "#c9d8f5",
    "gray matter": "#7d9fdc",
    "deep gray matter": "#5f7fb8",
    "CSF": "#2f56a6",
    "brainstem": "#2ca02c",
    "unspecified brain tissue": "#5577bb",
    "hippocampus": "#c49ae8",
    "optic": "#f0201a",
    "eye tissue": "#ff9a1f",
    "eye fluid": "#ffe840",
    "eye socket fat": "#4a78b8",
    "eye socket muscles": "#1d4fa3",
}


def color_of(name):
    return next(to_rgb(color) for key, color in COLORS.items() if key in name)


def cut(nodes, tetrahedra, axis, level):
    """(E, 2, 2) segments in which the faces of a mesh meet a plane."""
    faces = np.unique(np.sort(np.concatenate([np.delete(tetrahedra, w, 1) for w in range(4)]), 1), axis=0)
    p = nodes[faces]
    side = p[..., axis] > level
    crossing = side.any(1) & ~side.all(1)
    p, side = p[crossing], side[crossing]
    ends = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        t = (level - p[:, a, axis]) / np.where(
            side[:, a] == side[:, b], np.inf, p[:, b, axis] - p[:, a, axis]
        )
        point = p[:, a] + t[:, None] * (p[:, b] - p[:, a])
        point[side[:, a] == side[:, b]] = np.nan
        ends.append(np.delete(point, axis, 1))
    stacked = np.stack(ends, 1)
    order = np.argsort(np.isnan(stacked[..., 0]), axis=1, kind="stable")[:, :2]
    return np.take_along_axis(stacked, order[..., None], 1)


def draw(atlas, path, dpi):
    shape = tuple(atlas.provenance["box"])
    center = (np.array(shape) - 1) / 2
    nodes = atlas.nodes + center
    names = [s.name for s in atlas.labels.structures]
    p = rasterize(nodes, atlas.tetrahedra, atlas.alpha, shape)
    palette = np.array([color_of(n) for n in names], np.float32)

    def middle(*wanted):
        mass = p[..., [names.index(n) for n in wanted]].sum(-1)
        return [
            float((mass.sum(o) * np.arange(n)).sum() / mass.sum())
            for o, n in zip(((1, 2), (0, 2), (0, 1)), shape)
        ]

    eyes = middle("left eye fluid", "right eye fluid")
    views = (
        (2, eyes[2]),
        (0, middle("brainstem")[0]),
        (1, middle("left hippocampus", "right hippocampus")[1]),
    )
    figure, axes = plt.subplots(1, 3, figsize=(18, 7), facecolor="black")
    for ax, (axis, level) in zip(axes, views):
        at = round(level)
        image = np.clip(np.take(p, at, axis) @ palette, 0, 1)
        ax.imshow(image.transpose(1, 0, 2), origin="lower")
        lines = cut(nodes, atlas.tetrahedra, axis, at + 0.013)
        ax.add_collection(LineCollection(lines, colors="#b8ffb0", linewidths=0.35, alpha=0.75))
        ax.axis("off")
    figure.tight_layout(pad=0.2)
    figure.savefig(path, dpi=dpi, facecolor="black")
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "research" / "figures" / "atlas.png")
    options = parser.parse_args()
    atlas = load_atlas(ROOT / "src" / "tumoar" / "data" / "atlas.npz")
    if options.quick:
        options.output = Path(tempfile.mkdtemp()) / "atlas.png"
    draw(atlas, options.output, 60 if options.quick else 110)
    print(json.dumps({"nodes": len(atlas.nodes), "tetrahedra": len(atlas.tetrahedra)}))


if __name__ == "__main__":
    main()
