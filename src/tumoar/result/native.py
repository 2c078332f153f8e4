"""Transfer a result to the space of an input image: vote fractions are resampled, never labels.

Parts of an organ that are specks on the voxels of the input are omitted there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.geometry.resample import resample_mean
from tumoar.inference.tally import Certain, Chain, Votes, add_thin_organs, keep_connected, select_certain
from tumoar.model.pathway import trace
from tumoar.preprocess.case import resample_to_input
from tumoar.result.segmentation import Segmentation, exclusive
from tumoar.result.specks import fill_specks, find_specks
from tumoar.vocabulary.config import VoteRule
from tumoar.vocabulary.labels import LabelTable

Mask = npt.NDArray[np.bool_]

STEPS = 200
"""Resolution of fractions when organs outside the brain are voted on."""
HALF = 0.5 + 1e-5
"""More than half of the samples, allowing for rounding by interpolation."""


@dataclass(frozen=True, eq=False)
class Delivered:
    """Votes and the exclusive label map on the voxels of an input."""

    name: str
    grid: Grid
    votes: Votes
    labels: npt.NDArray[np.uint8]


def deliver(result: Segmentation, name: str) -> Delivered:
    """Transfer the result to the voxels of an input: resample fractions, then vote."""
    table, tally = result.table, result.tally
    grid = result.case.input(name).grid
    shares = (
        (k, resample_to_input(_fraction(result, k), result.case, name))
        for k in range(table.K)
        if tally.l[k].any()
    )
    removed = () if table.cavity is None else (table.structures[table.cavity].name,)
    z, y = (
        resample_to_input(np.where(result.islands, 0, tally.fraction(removed, parts)), result.case, name)
        > HALF
        for parts in (("core", "edema"), ("core",))
    )
    to_index = grid.inverse @ np.linalg.inv(result.case.input(name).to_reference) @ result.case.grid.affine
    certain = trace(result.fit.courses, grid, to_index)
    votes = vote_on_grid(table, grid, shares, z, y, result.config.vote, certain)
    if result.config.vote == "volume":
        specks = find_specks(table, votes.l, grid.voxel_volume / 1000)
        votes = fill_specks(table, votes, specks, grid.spacing)
    return Delivered(name, grid, votes, exclusive(table, votes))


def _fraction(result: Segmentation, k: int) -> npt.NDArray[np.float32]:
    """Vote fractions of a structure; none of a cavity where that is not outlined, all of core on its wall."""
    names = (result.table.structures[k].name,)
    share = result.tally.fraction(names)
    if k != result.table.cavity:
        return share
    share = np.where(result.closed | result.islands, 0, share)
    return np.where(result.film, result.tally.fraction(names, ("core",)), share)


def deliver_compartments(result: Segmentation) -> npt.NDArray[np.uint8]:
    """Compartments of the brain (model/compartments.py) on the voxels of the reference image."""
    found = result.compartments
    best, out = None, None
    for value in range(int(found.max()) + 1):
        is_value = (found == value).astype(np.float32)
        share = resample_to_input(is_value, result.case, result.case.reference)
        if best is None or out is None:
            best, out = share, np.zeros(share.shape, np.uint8)
        wins = share > best
        best[wins], out[wins] = share[wins], value
    assert out is not None
    return out


def deliver_sample(
    table: LabelTable,
    sample: Votes,
    grid: Grid,
    onto: Grid,
    islands: Mask | None = None,
    rule: VoteRule = "volume",
) -> Votes:
    """Transfer one sample to the voxels of the reference image, in the same way as the outline.

    `islands` are voxels of `onto` where the outline omits tumor. If `onto` has the same voxels as the result,
    nothing changes.
    """
    shares = (
        (k, resample_mean((sample.l == k).astype(np.float32), grid, onto))
        for k in np.unique(sample.l).tolist()
    )
    z, y = (resample_mean(part.astype(np.float32), grid, onto) > HALF for part in (sample.z, sample.y))
    if islands is not None:
        z, y = z & ~islands, y & ~islands
    return vote_on_grid(table, onto, shares, z, y, rule)


def vote_on_grid(
    table: LabelTable,
    grid: Grid,
    shares: Iterable[tuple[int, npt.NDArray[np.float32]]],
    z: Mask,
    y: Mask,
    rule: VoteRule = "volume",
    certain: Certain | None = None,
) -> Votes:
    """Votes from the fractions of every structure l on a grid, and from tumor masks, as `Tally.vote`."""
    certain = select_certain(table, certain)
    best, best_in_brain = np.zeros(grid.shape, np.float32), np.zeros(grid.shape, np.float32)
    l, l_in_brain = np.zeros(grid.shape, np.uint8), np.zeros(grid.shape, np.uint8)
    outside: dict[int, npt.NDArray[np.uint8]] = {}
    cavity = np.zeros(grid.shape, bool)
    for k, share in shares:
        if k == table.cavity:
            cavity = share > HALF
            continue
        wins = share > best if k not in certain else np.zeros(grid.shape, bool)
        best[wins], l[wins] = share[wins], k
        if table.structures[k].in_brain:
            wins = share > best_in_brain
            best_in_brain[wins], l_in_brain[wins] = share[wins], k
        else:
            outside[k] = np.rint(STEPS * share).astype(np.uint8)
    if rule == "volume":
        chains = {k: Chain(mask, keep_connected) for k, mask in certain.items()}
        l = add_thin_organs(l, outside, table, STEPS, chains)
        l[z] = l_in_brain[z]
    if table.cavity is not None:
        l[cavity] = table.cavity
    return Votes(l, z.astype(np.uint8), (y & z).astype(np.uint8))


def same_space(result: Segmentation, a: str, b: str) -> bool:
    """Whether two inputs have the same voxels in the same place."""
    one, other = result.case.input(a), result.case.input(b)
    return (
        one.grid.shape == other.grid.shape
        and np.array_equal(one.grid.affine, other.grid.affine)
        and np.array_equal(one.to_reference, other.to_reference)
    )


def remove_small_parts(mask: Mask, grid: Grid, least: float) -> tuple[Mask, int, int]:
    """Remove parts below `least` cm³; return mask, number of remaining parts, removed voxels."""
    parts, count = ndi.label(mask, np.ones((3, 3, 3)))
    sizes = np.bincount(parts.ravel(), minlength=count + 1)
    keeps = sizes * grid.voxel_volume / 1000 >= least
    keeps[0] = False
    kept = keeps[parts]
    return kept, int(keeps.sum()), int(mask.sum() - kept.sum())
