"""Two globes, two nerves and a chiasm in fat, given by a formula: the truth, an atlas of it, and a fit."""

from __future__ import annotations

from functools import cache

import numpy as np
import reference_tetra
from scipy import ndimage
from scipy.spatial import cKDTree

from tumoar.geometry.image import Case, Grid, Input
from tumoar.inference.gem import Fit
from tumoar.inference.initialise import tie_core_components
from tumoar.model.atlas import Atlas, place
from tumoar.model.bias import PER_AXIS
from tumoar.model.gmm import Theta
from tumoar.vocabulary.contrasts import default_contrasts
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
SHAPE = (72, 84, 40)
FINE = 2
GLOBE, RADIUS = np.array([23.0, 66.0, 18.0]), 12.0
CHIASM = np.array([0.0, 16.0, 22.0])
SIDES = {"left": -1, "right": 1}
CALIBER = (4.6, 4.0)
MEANS = {"GNE": 4.0, "chiasm": 4.0, "eye fluid": 3.0, "fat": 5.0}


def course(side, bend=(0.0, 0.0)):
    """(n, 3) mm from the middle of the globe to that of the chiasm; `bend` (lateral, up) is in mm."""
    t = np.linspace(0, 1, 400)[:, None]
    lateral, up = bend
    straight = GLOBE + t * (CHIASM - GLOBE)
    wave = np.sin(np.pi * t) ** 2
    points = straight + wave * np.array([lateral, 0, up])
    return points * [SIDES[side], 1, 1]


def label_map(world, bend=(0.0, 0.0), bends=None):
    """Positions of the structures in the label table at world points (..., 3)."""
    out = np.full(world.shape[:-1], LABELS.l("eye socket fat"))
    flat = world.reshape(-1, 3)
    for side in SIDES:
        points = course(side, (bends or {}).get(side, bend))
        distance, at = cKDTree(points).query(flat, distance_upper_bound=max(CALIBER))
        radius = np.interp(at / len(points), (0.25, 0.85), np.array(CALIBER) / 2)
        out.reshape(-1)[distance <= radius] = LABELS.l(f"{side} optic nerve")
    squashed = (world - CHIASM) / [9, 5, 3]
    out[(squashed**2).sum(-1) <= 1] = LABELS.l("optic chiasm")
    for side, sign in SIDES.items():
        away = np.linalg.norm(world - GLOBE * [sign, 1, 1], axis=-1)
        out[away <= RADIUS] = LABELS.l(f"{side} eye tissue")
        out[away <= RADIUS - 2] = LABELS.l(f"{side} eye fluid")
    return out


def grid(shape=SHAPE):
    affine = np.eye(4)
    affine[:3, 3] = [-(shape[0] - 1) / 2, 0, 0]
    return Grid(shape, affine)


def atlas():
    """An atlas on a regular mesh, blurred, of the head without bends."""
    nodes, tetrahedra = reference_tetra.body_centered((25, 29, 14), 3.0, 0.0)
    nodes = np.add(nodes, [-36.0, -1.5, -1.0])
    fine = grid()
    at = label_map(fine.world(np.moveaxis(np.indices(fine.shape), 0, -1)))
    index = fine.index(nodes).T
    alpha = np.zeros((len(nodes), LABELS.K), np.float32)
    for l in np.unique(at):
        blurred = ndimage.gaussian_filter((at == l).astype(float), 1.5)
        alpha[:, l] = ndimage.map_coordinates(blurred, index, order=1, mode="nearest")
    alpha[alpha < 1e-4] = 0
    alpha[:, LABELS.l("background")] += 1e-3
    return Atlas(nodes, tetrahedra, alpha / alpha.sum(1, keepdims=True), LABELS)


@cache
def fine_labels(bends):
    """The label map of a case, on voxels of half the size, for the bends of both sides."""
    index = np.moveaxis(np.indices(tuple(FINE * n for n in SHAPE)), 0, -1)
    at = label_map(grid().world((index + 0.5) / FINE - 0.5), bends=dict(zip(SIDES, bends)))
    return at.astype(np.uint8)


def case(bend=(0.0, 0.0), *, slices=1, axis=2, noise=0.15, seed=0, bends=None, shown=True, names=("T1c",)):
    """Images of the head in slices of this thickness; without `shown`, nerves look like fat."""
    onto, fine = grid(), FINE
    at = fine_labels(tuple((bends or {}).get(side, bend) for side in SIDES))
    mean = np.full(LABELS.K, MEANS["fat"])
    for name, value in MEANS.items():
        mean[LABELS.x_of_l == LABELS.x_named(name)] = value
    if not shown:
        mean[[LABELS.l(f"{side} optic nerve") for side in SIDES]] = MEANS["fat"]
    values = mean[at]
    X, Y, Z = SHAPE
    values = values.reshape(X, fine, Y, fine, Z, fine).mean((1, 3, 5))
    rng = np.random.default_rng(seed)
    if slices > 1:
        values = np.moveaxis(values, axis, 0)
        n = len(values) // slices
        thick = values[: n * slices].reshape(n, slices, *values.shape[1:]).mean(1)
        thick = thick + rng.normal(0, noise, thick.shape)
        places = np.clip((np.arange(len(values)) - (slices - 1) / 2) / slices, 0, n - 1)
        low = np.minimum(places.astype(int), n - 2)
        share = (places - low)[:, None, None]
        values = np.moveaxis((1 - share) * thick[low] + share * thick[low + 1], 0, axis)
    else:
        values = values + rng.normal(0, noise, values.shape)
    contrasts = tuple(default_contrasts()[name] for name in names)
    D = np.stack([values] * len(names)).astype(np.float32)
    size = np.eye(4)
    size[axis, axis] = slices
    inputs = tuple(Input(name, "", Grid(SHAPE, onto.affine @ size), "RAS", np.eye(4)) for name in names)
    return Case(D, contrasts, onto, names[0], inputs, skull_stripped=False)


def fit(of, model=None, sd=0.25):
    """The fit of a case whose atlas is where it was placed, and whose θ is known."""
    placed = place(model or atlas(), np.eye(4), of.grid)
    labels = tie_core_components(placed.atlas.labels)
    N, Q = len(of.contrasts), labels.Q
    mu = np.full((Q, N), 9.0)
    for name, value in MEANS.items():
        mu[labels.component_slice(labels.x_named(name))] = value
    Sigma = np.broadcast_to(np.eye(N) * sd**2, (Q, N, N)).copy()
    gamma = 1 / labels.G[labels.x_of_component]
    theta = Theta(gamma, mu, Sigma, np.zeros((N, *[PER_AXIS] * 3)))
    zero, one = np.zeros(SHAPE, np.float16), np.ones(SHAPE, np.float16)
    return Fit(theta, placed.reference, placed, labels, (), zero, one)
