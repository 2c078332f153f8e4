"""Measures the height of the tentorium in the space of the package's atlas, for data/tentorium.toml.

The atlas does not distinguish cerebellum from cerebrum; the label maps that trained it do. Each is aligned to
the atlas by its landmarks (an affine transform), and every point is assigned to the nearer of both. The
tentorium is where half of the heads are cerebellum; left and right are averaged.
"""

from __future__ import annotations

import argparse
import json
import zlib

import nibabel as nib
import numpy as np
from head_cases import DATA, LABELS
from scipy import ndimage as ndi

from tumoar.io.models import default_model
from tumoar.train.align import Alignment, fit_affine, landmark_names, landmarks
from tumoar.train.head_table import default_heads

CEREBELLUM = (7, 8, 46, 47)
CEREBRUM = (2, 3, 41, 42, 17, 53, 18, 54, 4, 43, 5, 44, 10, 49)
STEP = 10.0  # mm between the points of the table
FINE = 2.0  # mm between the points that are compared


def read_codes(name: str) -> np.ndarray:
    """Source codes of a head in the order right, front, up."""
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / name))
    return np.asarray(image.dataobj).astype(np.int16)


def to_head(codes: np.ndarray, alignment: Alignment) -> np.ndarray:
    """4x4 from voxels of the atlas box to those of a head, by the landmarks of its brain."""
    head, names = np.zeros(codes.shape, np.uint8), []
    for name, source in default_heads().structures.items():
        head[np.isin(codes, source)] = LABELS.indices[LABELS.l(name)]
        names.append(name)
    # The other structures are missing: `landmarks` needs one voxel of each.
    others = [s for s in LABELS.structures[1:] if s.trained and s.name not in names]
    for n, s in enumerate(others):
        head[0, 0, n] = s.index
    every = dict(zip(landmark_names(LABELS), landmarks(head, LABELS), strict=True))
    kept = [n for n in every if n not in [s.name for s in others]]
    return fit_affine(np.array([alignment.landmarks[n] for n in kept]), np.array([every[n] for n in kept]))


def find_cerebellum(name: str, alignment: Alignment, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether points of the atlas box are nearer to cerebellum than to cerebrum, and whether inside it."""
    codes = read_codes(name)
    matrix = to_head(codes, alignment)
    at = np.tensordot(matrix[:3, :3], points, 1) + matrix[:3, 3][:, None, None, None]
    here = ndi.map_coordinates(codes, at, order=0)
    below, above = (ndi.distance_transform_edt(~np.isin(here, c)) for c in (CEREBELLUM, CEREBRUM))
    return below < above, below == 0


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two heads")
    quick = parser.parse_args().quick
    atlas = default_model().atlas
    alignment = Alignment.of_card(atlas.provenance, atlas.labels)
    center = (np.array(alignment.shape) - 1) / 2
    axes = [np.arange(low, high, FINE) for low, high in ((-70, 71), (-100, 1), (-80, 31))]
    points = np.stack(np.meshgrid(*axes, indexing="ij")) + center[:, None, None, None]
    heads = atlas.provenance["heads"][: 2 if quick else None]
    found, inside = zip(*(find_cerebellum(name, alignment, points) for name in heads))
    share = np.mean(found, axis=0)
    share = ndi.gaussian_filter((share + share[::-1]) / 2, 1.0)
    is_over = np.any(inside, axis=(0, 3))  # columns in which a head has cerebellum, and 10 mm around them
    is_over = ndi.distance_transform_edt(~(is_over | is_over[::-1]), sampling=FINE) <= STEP
    x, y = np.arange(0, 71, STEP), np.arange(-100, 1, STEP)
    height, spread = np.full((len(x), len(y)), np.nan), []
    for i, j in np.ndindex(height.shape):
        a, b = np.searchsorted(axes[0], x[i]), np.searchsorted(axes[1], y[j])
        if is_over[a, b]:
            height[i, j] = axes[2][np.flatnonzero(share[a, b] > 0.5)[-1]] + FINE / 2
            if all(head[a, b].any() for head in inside):
                spread.append(np.std([axes[2][np.flatnonzero(f[a, b])[-1]] for f in found]))
    print("atlas =", zlib.crc32(atlas.nodes.astype("<f4").tobytes()))
    print("x =", x.tolist())
    print("y =", y.tolist())
    for row in height:
        print("  [" + ", ".join("nan" if np.isnan(h) else f"{h:g}" for h in row) + "],")
    figures = {"heads": len(heads), "known": int(np.isfinite(height).sum())}
    print(json.dumps(figures | {"median_spread_mm": round(float(np.median(spread)), 1)}))


if __name__ == "__main__":
    main()
