"""Colors of structures that touch can be told apart, by color-blind readers too."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from tumoar.geometry.image import Grid
from tumoar.io.models import SHIPPED, shipped_model
from tumoar.io.store import labels_to_dict
from tumoar.model.atlas import pi, place
from tumoar.vocabulary.labels import add_cavity, default_labels
from tumoar.vocabulary.parts import brain_labels

# Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009) 1291: linear RGB as seen without one kind of cone.
SEEN = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
"""Linear sRGB to CIE XYZ (IEC 61966-2-1)."""
LEAST, LEAST_OF_TUMOR = 15, 40  # 2.3 is just noticeable; labels are drawn half transparent
TUMOR = ("core", "edema", "resection cavity")
SPACING = 2.0  # mm


def lab(color, seen):
    """CIE Lab 1976 of a color as seen."""
    v = np.array(list(bytes.fromhex(color[1:]))) / 255
    linear = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    t = XYZ @ np.clip(np.array(seen) @ linear, 0, 1) / XYZ.sum(1)
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(a, b):
    """Smallest CIE 1976 difference over all kinds of color vision."""
    return min(float(np.linalg.norm(lab(a, seen) - lab(b, seen))) for seen in SEEN.values())


TABLES = {"default": default_labels, "brain": brain_labels}


@pytest.fixture(scope="module", params=SHIPPED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def touching(name):
    """Pairs of names that share a face of a voxel in the atlas; tumor and cavity touch all of the brain."""
    atlas = shipped_model(name).atlas
    low, high = atlas.box
    affine = np.diag([SPACING] * 3 + [1.0])
    affine[:3, 3] = low
    shape = tuple(int(n) for n in np.ceil((high - low) / SPACING))
    placed = place(atlas, np.eye(4), Grid(shape, affine))
    likeliest = pi(placed, placed.reference).argmax(-1)
    names = [s.name for s in atlas.labels.structures]
    pairs = set()
    for axis in range(3):
        a, b = (np.take(likeliest, range(i, likeliest.shape[axis] - 1 + i), axis) for i in (0, 1))
        faces = (a != b) & (a > 0) & (b > 0)
        pairs |= {frozenset((names[i], names[j])) for i, j in np.unique([a[faces], b[faces]], axis=1).T}
    brain = [s.name for s in atlas.labels.structures if s.in_brain]
    return pairs | set(map(frozenset, product(TUMOR, brain))) | set(map(frozenset, combinations(TUMOR, 2)))


def test_colors_of_structures_that_touch_differ_for_every_reader(touching, name):
    table = add_cavity(TABLES[name]())
    colors = {row.name: row.color for row in (*table.structures, *table.tumor)}
    assert len(touching) > 60
    assert frozenset(("left optic nerve", "optic chiasm")) in touching
    for a, b in map(sorted, touching):
        least = LEAST_OF_TUMOR if {a, b} <= set(TUMOR) else LEAST
        assert difference(colors[a], colors[b]) >= least, f"{a} {colors[a]} and {b} {colors[b]}"


def test_readers_without_green_cones_confuse_magenta_with_lavender_but_not_blue_with_yellow():
    without = SEEN["deuteranopia"]
    assert np.linalg.norm(lab("#ff1fc7", without) - lab("#b39ddb", without)) < 8
    assert np.linalg.norm(lab("#ff1fc7", SEEN["normal"]) - lab("#b39ddb", SEEN["normal"])) > 60
    assert np.linalg.norm(lab("#2040ff", without) - lab("#ffd60a", without)) > 100
    assert np.allclose(lab("#ffffff", SEEN["normal"]), [100, 0, 0], atol=0.01)


def test_the_model_in_the_package_has_the_colors_of_the_label_table(name):
    """They go from its table into run.json, segmentation.tsv, DICOM files and the report."""
    assert labels_to_dict(shipped_model(name).labels) == labels_to_dict(TABLES[name]())
