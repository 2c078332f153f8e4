"""MAP estimate of the courses of the optic pathway, after Algorithm 2 (docs/decisions/0044-optic-pathway.md).

The course of a nerve is the cheapest path from the globe to the chiasm. A voxel is cheap where the atlas at
its fitted nodes expects the nerve, and where the images look like it: the log-odds of both, averaged over the
cross-section. The path is then moved to the middle of what is probably nerve around it, below a voxel. Where
the images show nothing, what remains is the course of the atlas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import cKDTree
from scipy.special import expit, logit, ndtr

from tumoar.geometry.image import Case, Grid
from tumoar.geometry.paths import cheapest_path, find_directions, resample_course, smooth_course
from tumoar.inference.gem import Fit
from tumoar.model import joint
from tumoar.model.pathway import Course, Link, PathwayTable, default_pathway, find_nearest
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import UNUSED, WITH_DATA
from tumoar.vocabulary.labels import LabelTable

Array = npt.NDArray[np.floating]
Points = npt.NDArray[np.float64]

STEP = 0.5
"""Millimeters between the points of a course."""
ROUNDS = 5
"""Moves of a course to the middle of what is around it; the last ones are below a tenth of a voxel."""
MARGIN = 12.0
"""Millimeters around the nodes of the structures in which a course is searched for."""
LEAST = (1000.0, 50.0)
"""mm³ in view that a course needs to begin and to end in: a tenth of a globe, a third of a small chiasm."""
CLOSED = 1e-4
"""Blurred prior of the atlas below which no course passes."""


@dataclass(frozen=True, eq=False)
class View:
    """π and likelihoods (X, Y, Z, K) in a box of the case that begins at voxel `start`.

    `shows` (X, Y, Z) is the share of a voxel's evidence that counts: 0 without data or with tumor, and in
    voxels of 1 mm³ interpolated from larger ones, what they have of these.
    """

    grid: Grid
    start: npt.NDArray[np.int64]
    pi: Array
    L: Array
    shows: Array


def find_courses(case: Case, fit: Fit, table: PathwayTable | None = None) -> tuple[Course, ...]:
    """The courses of a patient in voxels of the case, without those that atlas or images do not have."""
    table = table or default_pathway()
    links = table.select(fit.placed.atlas)
    view = build_view(case, fit, links) if links else None
    if view is None:
        return ()
    found = [course for link in links if (course := find_course(view, fit, link, table)) is not None]
    found = join_courses(found, view, table)
    return tuple(replace(course, points=course.points + view.start) for course in found)


def build_view(case: Case, fit: Fit, links: tuple[Link, ...]) -> View | None:
    """The part of the images that the courses may pass; None if it is out of view."""
    placed, labels = fit.placed, fit.placed.atlas.labels
    columns = [labels.l(name) for link in links for name in (link.structure, link.end, *link.begin)]
    nodes = fit.nodes[(placed.atlas.alpha[:, columns] > 0.05).any(1)]
    if len(nodes) == 0:
        return None
    margin = MARGIN / case.grid.spacing
    low = np.clip(np.floor(nodes.min(0) - margin).astype(int), 0, case.grid.shape)
    high = np.clip(np.ceil(nodes.max(0) + margin).astype(int) + 1, low, case.grid.shape)
    if (high - low < 3).any():
        return None
    i, j, k = box = tuple(slice(int(a), int(b)) for a, b in zip(low, high))
    shape = (i.stop - i.start, j.stop - j.start, k.stop - k.start)
    pi = rasterize(fit.nodes - low, placed.tetrahedra, placed.atlas.alpha, shape, placed.atlas.background)
    D = np.ascontiguousarray(case.D[(slice(None), *box)])
    seen = np.isfinite(D).all(0)
    if case.excluded is not None:
        seen &= ~case.excluded[box]
    volume = joint.build_part(D, np.where(seen, WITH_DATA, UNUSED).astype(np.uint8), case.grid.shape, box)
    columns_of = joint.assign_columns(labels)
    groups, normal = joint.drop_tumor(joint.compile_groups(fit.labels, columns_of), fit.theta)
    L = np.empty((*shape, int(columns_of.max()) + 1), np.float32)
    joint.class_likelihoods(volume, groups, normal, L, int(columns_of[placed.atlas.background]))
    shows = seen * (1 - np.clip(fit.w[box].astype(np.float64), 0, 1)) * measure_resolution(case)
    L[~seen] = 1
    affine = case.grid.affine.copy()
    affine[:3, 3] = case.grid.world(low)
    return View(Grid(shape, affine), low, pi, L[..., columns_of], shows)


def measure_resolution(case: Case) -> float:
    """Voxels that were measured per voxel of the case, at most one: the mean over its images."""
    shares = [min(1.0, case.grid.voxel_volume / given.grid.voxel_volume) for given in case.inputs]
    return float(np.mean(shares))


def weigh_evidence(view: View, members: list[int], limit: float) -> Array:
    """(X, Y, Z) log likelihood ratio of structures against all others as the atlas mixes them, limited."""
    rest = np.setdiff1d(np.arange(view.pi.shape[-1]), members)
    ratio = np.log(_mix(view, members)) - np.log(_mix(view, rest.tolist()))
    return np.asarray(view.shows * np.clip(ratio, -limit, limit))


def _mix(view: View, members: list[int]) -> Array:
    """(X, Y, Z) likelihood of the data under a mix of structures, in the proportions of the blurred atlas."""
    share = np.stack([ndimage.gaussian_filter(view.pi[..., l].astype(np.float64), 1.0) for l in members], -1)
    share += 1e-6
    likelihood = (share * view.L[..., members]).sum(-1) / share.sum(-1)
    return np.asarray(np.maximum(likelihood, 1e-30))


def find_course(view: View, fit: Fit, link: Link, table: PathwayTable) -> Course | None:
    """The course of one structure, in voxels of the view; None if its ends are out of view."""
    labels = fit.placed.atlas.labels
    l, end = labels.l(link.structure), labels.l(link.end)
    globe = view.pi[..., [labels.l(name) for name in link.begin]].sum(-1)
    cubic = view.grid.voxel_volume
    seen = view.shows > 0
    if any(
        float(share[seen].sum()) * cubic < least for share, least in zip((globe, view.pi[..., end]), LEAST)
    ):
        return None
    spacing = view.grid.spacing
    evidence = weigh_evidence(view, [l, end], table.evidence)
    mean = ndimage.gaussian_filter(evidence, np.mean(table.caliber) / 4 / spacing)
    expected = ndimage.gaussian_filter(
        (view.pi[..., l] + view.pi[..., end]).astype(float), table.stray / spacing
    )
    with np.errstate(divide="ignore"):
        score = logit(np.clip(expected, 0, 1 - 1e-6)) + mean
    cost = np.logaddexp(0, -score) + table.toll  # -log of the probability
    cost[expected < CLOSED] = np.inf
    cost[globe > 0.5] = table.toll
    begin, middle = _center(globe), _center(view.pi[..., end] * np.exp(np.clip(evidence, 0, None)))
    for point in (begin, middle):
        cost[tuple(np.rint(point).astype(int))] = table.toll
    path = cheapest_path(cost, _only(begin, cost.shape), _only(middle, cost.shape))
    if len(path) < 2:
        return None
    points = np.concatenate([begin[None], path[1:-1], middle[None]])
    points = smooth_course(resample_course(points, STEP), table.smooth / STEP)
    n = len(points)
    inside = ndimage.map_coordinates(_posterior(view, globe, link, labels), points.T, order=1)
    first = int(np.flatnonzero(inside[: n // 2] > 0.5).max(initial=0)) + 1
    course = Course(l, end, points, np.zeros(n), first, n - 1)
    course = _with_radius(course, table)
    for _ in range(ROUNDS):
        course = center_course(course, evidence, np.log(np.maximum(expected, CLOSED)), view.grid, table)
    return course


def _posterior(view: View, globe: Array, link: Link, labels: LabelTable) -> Array:
    """(X, Y, Z) probability of what the course begins in."""
    each = view.pi * view.L
    of = each[..., [labels.l(name) for name in link.begin]].sum(-1)
    return np.asarray(ndimage.gaussian_filter(of / np.maximum(each.sum(-1), 1e-30), 0.7))


def _center(share: Array) -> Points:
    return np.array(ndimage.center_of_mass(share), float)


def _only(point: Points, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    out = np.zeros(shape, bool)
    out[tuple(np.clip(np.rint(point).astype(int), 0, np.array(shape) - 1))] = True
    return out


def _with_radius(course: Course, table: PathwayTable) -> Course:
    """The course with the caliber of the table, from where the structure begins to where it ends."""
    at = np.clip((np.arange(len(course.points)) - course.first) / max(1, course.last - course.first), 0, 1)
    return replace(course, radius=np.interp(at, (0, 1), np.array(table.caliber) / 2))


def center_course(
    course: Course, evidence: Array, expected: Array, grid: Grid, table: PathwayTable
) -> Course:
    """Move a course to the middle of what is probably its structure: across, and smoothly along it.

    `evidence` (X, Y, Z) are the log likelihood ratios of the structure, `expected` is its log prior.
    """
    spacing, n = grid.spacing, len(course.points)
    reach = course.radius.max() + 2 * table.give
    box, nearest, distance = find_nearest(course.points, reach, grid)
    near = np.isfinite(distance)
    at = nearest[near]
    share = np.clip(ndtr((course.radius[at] - distance[near]) / table.softness), 1e-6, 1 - 1e-6)
    prior = expected[box][near] - ndimage.map_coordinates(expected, course.points.T, order=1)[at]
    weight = expit(logit(share) + evidence[box][near] + prior)
    voxel = np.argwhere(near) + [b.start for b in box]
    away = (voxel - course.points[at]) * spacing
    mass = np.bincount(at, weight, n)
    pull = np.stack([np.bincount(at, weight * away[:, d], n) for d in range(3)], 1)
    mass, pull = (ndimage.gaussian_filter1d(v, table.smooth / STEP, axis=0) for v in (mass, pull))
    shift = pull / np.maximum(mass, 1e-6)[:, None]
    along = find_directions(course.points * spacing)
    shift -= (shift * along).sum(1, keepdims=True) * along
    shift[[0, -1]] = 0
    points = smooth_course(course.points + shift / spacing, table.smooth / STEP / 2)
    return replace(course, points=points)


def join_courses(courses: list[Course], view: View, table: PathwayTable) -> list[Course]:
    """Let each structure end where the atlas expects the end of the course, or where two courses meet."""
    out = []
    for course in courses:
        share = [ndimage.gaussian_filter(view.pi[..., l].astype(float), 1.0) for l in (course.l, course.end)]
        of, end = (ndimage.map_coordinates(s, course.points.T, order=1) for s in share)
        half = len(course.points) // 2
        is_end = np.append(of[half:-1] <= end[half:-1], True)
        out.append(replace(course, last=half + int(is_end.argmax())))
    spacing = view.grid.spacing
    for a, b in combinations(range(len(out)), 2):
        one, other = out[a], out[b]
        for i, c, against in ((a, one, other), (b, other, one)):
            gap, near = cKDTree(against.points * spacing).query(c.points * spacing)
            gap -= c.radius + against.radius[near] + table.apart
            last = int(np.append(gap < 0, True).argmax())
            out[i] = replace(out[i], last=max(c.first + 1, min(out[i].last, last)))
    return [_with_radius(course, table) for course in out]
