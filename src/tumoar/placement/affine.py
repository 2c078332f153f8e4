"""First placement of the atlas: the affine map under which soft classes best explain the intensities.

Intensities of each channel are cut into bins; class c has in channel n a histogram p_n(b|c) of its own, of
any form, so that any contrast will do. The log-likelihood Σ_i log Σ_c π_i(c) Π_n p_n(b_in|c) / p_n(b_in) is
raised in turn over the histograms (expectation maximization) and over the map (Fisher scoring), from many
starts, coarse to fine. Its mean, in nats per sample over histograms that know of no place, is the gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Case, Grid
from tumoar.model.atlas import Atlas
from tumoar.numerics.histogram import joint_counts, mixture_score
from tumoar.placement.pyramid import BINS, Signal, pyramid
from tumoar.placement.template import Template, atlas_template, default_surroundings
from tumoar.vocabulary.config import Settings
from tumoar.vocabulary.errors import FitError
from tumoar.vocabulary.notes import Note

Matrix = npt.NDArray[np.float64]

RADIUS = 80.0
"""mm; turning and stretching are measured by how far they move a point this far from the center."""
ASIDE = 12.0
"""mm; so far off its place an atlas explains a brain no better than chance and slow fields do."""
RIGID, SIMILAR, AFFINE = 6, 7, 12
"""How many of the generators are free."""


class AffineConfig(Settings):
    """Search and refinement; lengths in mm, angles in degrees."""

    sizes: tuple[int, int, int] = (4, 8, 16)  # of blocks: last refinement, first refinement, search
    turn: float = 25.0  # between starts
    lattice: float = 24.0  # between starts
    refined: int = 8  # starts
    finished: int = 4  # of these
    apart: float = 6.0  # between those that are finished
    scale_sd: float = 0.10  # expected of the size of heads against the atlas, in logs
    shape_sd: float = 0.06  # and of their shape
    correlation: float = 16.0  # over which samples tell the same
    near: float = 0.05  # probability of brain or eye socket in the coarsest template: about 10 mm around
    scale_range: tuple[float, float] = (0.7, 1.4)
    largest_rotation: float = 45.0
    least_inside: float = 0.97  # of the brain, in the image: right ones measured 0.990 and more
    least_in_head: float = 0.75  # of the brain, in what is bright: stripped brains lack fluid, 0.91 and more
    least_local: float = (
        0.0045  # nats: right heads 0.012 and more, a coarse phantom 0.0056, no head 0.003 and less
    )
    turned_margin: float = 0.0  # nats per sample


@dataclass(frozen=True, eq=False)
class AffineResult:
    """`matrix` (4x4) takes the world of the atlas to that of the case; `failures` say why not to use it."""

    matrix: Matrix
    quality: dict[str, float]
    failures: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False)
class Pose:
    """World coordinates of the case to those of the atlas (4x4), and the penalized gain there."""

    matrix: Matrix
    score: float
    gain: float = 0.0


def place_affine(case: Case, atlas: Atlas, config: AffineConfig | None = None) -> AffineResult:
    """The placement of an atlas, or a refusal (exit 7) when it fails its own checks."""
    template = atlas_template(atlas, default_surroundings(), skull_stripped=case.skull_stripped)
    result = find_placement(case, template, config)
    if result.failures:
        id_, _, sentence = result.failures[0].partition(" ")
        raise FitError(
            id_,
            f"no head found that the atlas fits: {sentence}",
            found=", ".join(f"{name} {value:.3g}" for name, value in result.quality.items()),
            do="check that the images show a whole adult head the right way up",
        )
    return result


def find_placement(case: Case, template: Template, config: AffineConfig | None = None) -> AffineResult:
    """The best placement found, and what is wrong with it."""
    config = config or AffineConfig()
    if case.skull_stripped != template.skull_stripped:
        raise ValueError("case and template must both be skull-stripped, or neither")
    # Seen from the case's first voxel: where a header puts the world's origin cannot matter, to the last bit.
    origin, axes = np.eye(4), case.grid.affine.copy()
    origin[:3, 3], axes[:3, 3] = case.grid.affine[:3, 3], 0.0
    fine, middle, coarse = pyramid(replace(case, grid=Grid(case.grid.shape, axes)), config.sizes)
    if not coarse.in_head.any():
        return AffineResult(np.eye(4), {}, ("B38 there is no signal",))

    upright = _best_starts(coarse, template, _tilts(config.turn), config)
    poses = [
        refine(p.matrix, middle, template, 0, SIMILAR, config, passes=20, tolerance=0.5) for p in upright
    ]
    poses = _distinct(poses, template, config.apart, config.finished)
    poses = [refine(p.matrix, fine, template, 1, AFFINE, config, passes=16, tolerance=0.3) for p in poses]
    # The brain decides, not skin and air, which are most of what a likelihood sees.
    best = max(poses, key=lambda p: _anatomy(p, fine, template))
    # Skulls and faces differ from each other more than brains do: at the end only what is near counts.
    for tolerance in (0.1, 0.01):
        near = fine.restricted(_prior(fine, best, template, 0, template.is_atlas) > config.near)
        best = refine(best.matrix, near, template, 2, AFFINE, config, passes=100, tolerance=tolerance)

    # The same, for heads that lie in the image otherwise than its header says.
    at_middle = refine(best.matrix, middle, template, 0, SIMILAR, config, passes=12, tolerance=0.5)
    turned = _best_starts(coarse, template, _turns(), config)[: config.finished]
    turned = [
        refine(p.matrix, middle, template, 0, SIMILAR, config, passes=20, tolerance=0.5) for p in turned
    ]
    rivals = [p for p in turned if _degrees(p.matrix) > config.largest_rotation]

    # The size that the image itself asks for, without what is expected of heads.
    loose = config.model_copy(update={"scale_sd": np.inf})
    free = refine(best.matrix, middle, template, 0, SIMILAR, loose, passes=20, tolerance=0.5)

    quality = _quality(best, fine, template)
    quality["free scale"] = float(rotation_and_scales(_inverse(free.matrix))[1].mean())
    if rivals:
        rival = max(rivals, key=lambda p: p.score)
        quality["turned"] = rival.score - at_middle.score
        quality["turned anatomy"] = _quality(rival, fine, template)["anatomy"] - quality["anatomy"]
    quality["spread"] = float(np.mean([_distance(p.matrix, best.matrix, template) for p in poses]))
    failures = _failures(quality, config)
    return AffineResult(origin @ _inverse(best.matrix), quality, failures)


# ---- starts --------------------------------------------------------------------------------------------


def _tilts(turn: float) -> list[Matrix]:
    """No rotation, one about each axis to either side, and the eight between three axes."""
    corners = np.array(np.meshgrid(*[(-1, 1)] * 3)).reshape(3, -1).T / np.sqrt(3)
    vectors = np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3), corners])
    return list(Rotation.from_rotvec(turn * vectors, degrees=True).as_matrix())


def _turns() -> list[Matrix]:
    """Quarter and half turns about each axis."""
    vectors = [angle * axis for axis in np.eye(3) for angle in (90.0, -90.0, 180.0)]
    return list(Rotation.from_rotvec(vectors, degrees=True).as_matrix())


def _best_starts(
    signal: Signal, template: Template, rotations: Sequence[Matrix], config: AffineConfig
) -> list[Pose]:
    """The most informative starts that lie clearly apart."""
    scale = 1.0
    if template.skull_stripped:
        scale = float(np.clip((signal.head_volume / template.brain_volume) ** (1 / 3), 0.8, 1.25))
    poses = []
    for center in _centers(signal, template, config):
        for R in rotations:
            matrix = np.eye(4)
            matrix[:3, :3] = R / scale
            matrix[:3, 3] = template.center - matrix[:3, :3] @ center
            counts = joint_counts(
                signal.q, signal.bins, _to_voxels(matrix, template), template.levels[0], BINS + 1
            )
            poses.append(Pose(matrix, _information(counts)))
    return _distinct(poses, template, config.turn, config.refined)


def _centers(signal: Signal, template: Template, config: AffineConfig) -> npt.NDArray[np.float64]:
    """Where the center of the brain may be: near that of a stripped brain, else all over a head's inside."""
    if template.skull_stripped:
        steps = np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
        return signal.q[signal.in_head].mean(0) + config.lattice * steps
    head = signal.q[signal.in_head]
    low, high = head.min(0), head.max(0)
    axes = [np.arange(a + (b - a) % config.lattice / 2, b + 1, config.lattice) for a, b in zip(low, high)]
    lattice = np.array(np.meshgrid(*axes)).reshape(3, -1).T
    near = np.exp(-((lattice[:, None] - head) ** 2).sum(-1) / (2 * 30.0**2)).sum(1)
    return lattice[near > 0.7 * near.max()]


def _information(counts: npt.NDArray[np.float64]) -> float:
    """Mutual information of bin and class, summed over channels."""
    joint = counts / np.maximum(counts.sum((1, 2), keepdims=True), 1e-300)
    apart = joint.sum(1, keepdims=True) * joint.sum(2, keepdims=True)
    return float((joint * np.log(np.maximum(joint, 1e-300) / np.maximum(apart, 1e-300))).sum())


def _distinct(poses: Sequence[Pose], template: Template, apart: float, most: int) -> list[Pose]:
    """The best, best first, without those within `apart` mm of a better one."""
    out: list[Pose] = []
    for pose in sorted(poses, key=lambda p: -p.score):
        if all(_distance(pose.matrix, other.matrix, template) >= apart for other in out):
            out.append(pose)
        if len(out) == most:
            break
    return out


def _distance(a: Matrix, b: Matrix, template: Template) -> float:
    """Mean distance in the case of points on a sphere around the brain under two poses."""
    points = template.center + RADIUS * np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
    ends = [points @ m[:3, :3].T + m[:3, 3] for m in (_inverse(a), _inverse(b))]
    return float(np.linalg.norm(ends[0] - ends[1], axis=1).mean())


# ---- refinement ----------------------------------------------------------------------------------------


def generators(center: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(12, 4, 4) motions of atlas space of 1 mm at the radius: 3 shifts, 3 turns, size, 5 of shape."""
    out = np.zeros((12, 4, 4))
    out[:3, :3, 3] = np.eye(3)
    pairs = ((1, 2), (2, 0), (0, 1))
    for k, (a, b) in enumerate(pairs):
        out[3 + k, [a, b], [b, a]] = -1, 1
        out[9 + k, [a, b], [b, a]] = 1, 1
    out[6, :3, :3] = np.eye(3)
    out[7, :3, :3] = np.diag([1, -1, 0])
    out[8, :3, :3] = np.diag([0.5, 0.5, -1])
    out[3:, :3, :3] /= RADIUS
    out[3:, :3, 3] = -out[3:, :3, :3] @ center
    return out


def refine(
    matrix: Matrix,
    signal: Signal,
    template: Template,
    level: int,
    freedom: int,
    config: AffineConfig,
    *,
    passes: int,
    tolerance: float,
) -> Pose:
    """Climb from a start until a step moves no point by `tolerance` mm, or the passes are used up."""
    q, bins, P = signal.q, signal.bins, template.levels[level]
    motions = generators(template.center)[:freedom]
    to_index, to_world = template.grid.inverse, template.grid.affine
    basis = np.stack([(to_index @ E @ to_world)[:3].ravel() for E in motions], 1)
    strains = np.stack([(E + E.T)[:3, :3].ravel() / 2 for E in motions], 1)
    # Neighboring samples tell the same: as many count as there are cubes of the correlation length.
    weight = bins.shape[1] * (config.correlation / signal.mm) ** 3

    def evaluate(matrix: Matrix, ratio: npt.NDArray[np.float32]) -> tuple[float, float, Matrix, Matrix, Any]:
        gain, slope, fisher, counts = mixture_score(q, bins, _to_voxels(matrix, template), P, ratio)
        cost, stress, stiffness = _stretch_cost(matrix, config)
        slope = basis.T @ slope - weight * strains.T @ stress
        fisher = basis.T @ fisher @ basis + weight * strains.T @ stiffness @ strains
        return gain - weight * cost, gain, slope, fisher, _ratios(counts)

    ratio = _ratios(joint_counts(q, bins, _to_voxels(matrix, template), P, BINS + 1))
    ratio = evaluate(matrix, ratio)[-1]
    score, gain, slope, fisher, ratio = evaluate(matrix, ratio)
    damping = 1e-2
    for _ in range(passes):
        step = np.linalg.solve(fisher + damping * np.diag(np.diagonal(fisher)), slope)
        length = np.abs(step).max()
        trial = _exponential(np.tensordot(step * min(1.0, 0.1 * RADIUS / length), motions, 1)) @ matrix
        found = evaluate(trial, ratio)
        if found[0] > score:
            matrix, (score, gain, slope, fisher, ratio) = trial, found
            damping = max(damping / 4, 1e-4)
        else:
            damping *= 8
        if length < tolerance:
            break
    return Pose(matrix, score / len(q), gain / len(q))


def _ratios(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """(N, B, C) p_n(b|c) / p_n(b), drawn a little towards one."""
    total = counts.sum(2, keepdims=True) + 1e-9
    marginal = total / total.sum(1, keepdims=True)
    prior = BINS * marginal
    return ((counts + prior) / (counts.sum(1, keepdims=True) + BINS) / marginal).astype(np.float32)


def _stretch_cost(matrix: Matrix, config: AffineConfig) -> tuple[float, Matrix, Matrix]:
    """Normal penalty on logarithmic strain, size and shape apart; its slope (9,) and curvature (9, 9)."""
    values, vectors = np.linalg.eigh(matrix[:3, :3] @ matrix[:3, :3].T)
    strain = ((vectors * (0.5 * np.log(values))) @ vectors.T).ravel()
    size = np.outer(np.eye(3).ravel(), np.eye(3).ravel()) / 3
    stiffness = size / (3 * config.scale_sd**2) + (np.eye(9) - size) / config.shape_sd**2
    return 0.5 * strain @ stiffness @ strain, stiffness @ strain, stiffness


def _inverse(matrix: Matrix) -> Matrix:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _to_voxels(matrix: Matrix, template: Template) -> Matrix:
    return np.ascontiguousarray((template.grid.inverse @ matrix)[:3])


def _exponential(A: Matrix) -> Matrix:
    """Matrix exponential of a small 4x4 matrix, as ten terms of its series."""
    out = term = np.eye(4)
    for k in range(1, 10):
        term = term @ A / k
        out = out + term
    return out


# ---- quality -------------------------------------------------------------------------------------------


def rotation_and_scales(matrix: Matrix) -> tuple[Matrix, npt.NDArray[np.float64]]:
    """Nearest rotation (3, 3), and the scales (3,) along the axes of stretch, of an affine map."""
    U, scales, Vt = np.linalg.svd(matrix[:3, :3])
    return U @ Vt, scales


def _degrees(matrix: Matrix) -> float:
    return float(np.degrees(Rotation.from_matrix(rotation_and_scales(matrix)[0]).magnitude()))


def _quality(pose: Pose, signal: Signal, template: Template) -> dict[str, float]:
    """Figures of a placement."""
    matrix = _inverse(pose.matrix)
    scales = rotation_and_scales(matrix)[1]
    P = template.levels[-1]
    brain = P[..., template.is_brain].sum(-1)
    prior = _prior(signal, pose, template, -1)
    seen = prior.sum() * signal.mm**3 / abs(np.linalg.det(matrix[:3, :3]))
    anatomy = _anatomy(pose, signal, template)
    return {
        "gain": pose.gain / signal.bins.shape[1],
        "anatomy": anatomy,
        # A field that varies slowly tells as much wherever the atlas lies, folds and nuclei do not.
        "local anatomy": anatomy - _anatomy(pose, signal, template, aside=ASIDE),
        "rotation": _degrees(matrix),
        "smallest scale": float(scales[-1]),
        "largest scale": float(scales[0]),
        "inside": float(seen / (brain.sum() * template.grid.voxel_volume)),
        "in head": float(prior[signal.in_head].sum() / max(prior.sum(), 1e-9)),
    }


def _anatomy(pose: Pose, signal: Signal, template: Template, *, aside: float = 0.0) -> float:
    """What bins tell of classes deep in the brain, nats per channel; or on average so many mm `aside`."""
    # Away from the brain's surface, where any ball would do: only what lies inside tells a brain from it.
    deep = signal.restricted(signal.in_head & (_prior(signal, pose, template, 0) > 0.9))
    told = []
    for step in aside * np.vstack([np.eye(3), -np.eye(3)]) if aside else np.zeros((1, 3)):
        matrix = pose.matrix.copy()
        matrix[:3, 3] += step
        to_voxels = _to_voxels(matrix, template)
        told.append(_information(joint_counts(deep.q, deep.bins, to_voxels, template.levels[-1], BINS + 1)))
    return float(np.mean(told)) / signal.bins.shape[1]


def _prior(
    signal: Signal, pose: Pose, template: Template, level: int, classes: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float32]:
    """(n,) probability of brain, or of some classes, at each sample; none outside the template."""
    to_voxels = _to_voxels(pose.matrix, template)
    brain = template.levels[level][..., template.is_brain if classes is None else classes].sum(-1)
    where = to_voxels[:, :3] @ signal.q.T + to_voxels[:, 3:]
    return np.asarray(ndi.map_coordinates(brain, where, order=1, mode="constant"), np.float32)


def _fits_turned(quality: dict[str, float], config: AffineConfig) -> bool:
    """Whether another way up explains the image better, and what lies deep in the brain as well.

    The outside alone can mislead: skull and air of a smooth head look much the same from several sides.
    """
    better = quality.get("turned", -np.inf) >= config.turned_margin
    return better and quality["turned anatomy"] >= 0


def _failures(quality: dict[str, float], config: AffineConfig) -> tuple[str, ...]:
    low, high = config.scale_range
    checks = (
        (low <= quality["free scale"] <= high, "B39 the head would not have the size of an adult's"),
        (quality["smallest scale"] >= low, "B39 the head would be smaller than any adult's"),
        (quality["largest scale"] <= high, "B39 the head would be larger than any adult's"),
        (quality["rotation"] < config.largest_rotation, "B38 the head would lie across the image"),
        (not _fits_turned(quality, config), "B38 it fits better turned than the header says"),
        (quality["local anatomy"] >= config.least_local, "B38 intensities do not follow the anatomy"),
        (quality["in head"] >= config.least_in_head, "B38 part of the brain would lie in air"),
        (quality["inside"] >= config.least_inside, "B37 part of the brain would lie outside the image"),
    )
    return tuple(sentence for passed, sentence in checks if not passed)
