"""Whether contrasts are what their names say, from the order of tissues under the placed atlas.

Gray matter is darker than white in a T1 and brighter in a T2 or FLAIR; fluid is bright in a T2 and dark in
a FLAIR. Tissues are compared in their own neighborhood, where a bias field is nearly flat, and the median
over all neighborhoods does not move with a tumor in some. With tumor, atrophy and a placement that is only
affine an order may be weak, but it is as weak in every contrast: pairs of contrasts are compared as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Case
from tumoar.model.atlas import Placed
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.threads import map_threads
from tumoar.vocabulary.contrasts import Contrast
from tumoar.vocabulary.errors import ChannelError
from tumoar.vocabulary.notes import Note

TISSUES = ("GWM", "GGM", "CSF")
WORDS = {"GWM": "white matter", "GGM": "gray matter", "CSF": "fluid"}
SURE = {"GWM": 0.8, "GGM": 0.6, "CSF": 0.6}  # prior probability; cortex and fluid are thin
BLOCK = 24  # mm, of a neighborhood
FEWEST_VOXELS, FEWEST_BLOCKS = 20, 4
DOUBTFUL, CLEAR = 0.05, 0.10  # in log intensity, against the order: worth a note; a refusal

Ratios = Mapping[tuple[str, str], float]
"""(bright, dark) to the log of the ratio of their intensities."""


@dataclass(frozen=True)
class Contradiction:
    """An order that a name promises and an image breaks, by `margin` in log intensity."""

    margin: float
    text: str
    is_weak: bool = False


def check_order(case: Case, placed: Placed, *, trusted: bool = False) -> tuple[Note, ...]:
    """Refuse contrasts that are clearly not what their names say, unless they are `trusted`; note doubts."""
    found = tissue_ratios(case, placed)
    worst = max(contradictions(case.contrasts, found), key=_rank, default=None)
    if worst is None or worst.margin < DOUBTFUL:
        return ()
    pair = explained_by(case.contrasts, found)
    asked = f"were {pair[0]} and {pair[1]} swapped?" if pair else "is each image what its name says?"
    if worst.margin < CLEAR or worst.is_weak or trusted:
        doubt = f"whether {pair[0]} and {pair[1]} were swapped" if pair else "the name of each image"
        return (Note("swapped", worst.text, action=f"check {doubt}"),)
    raise ChannelError(
        "swapped",
        f"{worst.text}; {asked}",
        found=f"by {np.expm1(worst.margin):.0%}",
        do="give each image under its own name, or use --trust-contrasts if the names are right",
    )


def tissue_ratios(case: Case, placed: Placed) -> list[Ratios]:
    """Of each channel, for every two tissues: the log of the ratio of their intensities.

    A channel without an order of its own, or without enough of a tissue, has none.
    """
    labels = placed.atlas.labels
    columns = np.zeros(labels.K, int)
    for number, tissue in enumerate(TISSUES, 1):
        columns[[s.gmm == tissue for s in labels.structures]] = number
    alpha = merge_labels(placed.atlas.alpha, columns)
    prior = rasterize(placed.reference, placed.tetrahedra, alpha, placed.shape, 0)
    counts = -(-np.array(case.grid.shape) // BLOCK)
    total = int(counts.prod())
    masks, blocks = [], []
    for number, tissue in enumerate(TISSUES, 1):
        if number < prior.shape[-1]:
            mask = prior[..., number] > SURE[tissue]
        else:  # a model without this tissue
            mask = np.zeros(placed.shape, bool)
        if case.excluded is not None:
            mask &= ~case.excluded
        masks.append(mask)
        blocks.append(np.asarray(np.ravel_multi_index(tuple(np.argwhere(mask).T // BLOCK), tuple(counts))))

    def one(channel: int) -> Ratios:
        if not case.contrasts[channel].darker:
            return {}
        medians = [_medians(case.D[channel][m], b, total) for m, b in zip(masks, blocks)]
        out = {}
        for (one, a), (other, b) in combinations(zip(TISSUES, medians), 2):
            both = np.isfinite(a) & np.isfinite(b)
            if both.sum() >= FEWEST_BLOCKS:
                out[one, other] = float(np.median(a[both] - b[both]))
                out[other, one] = -out[one, other]
        return out

    return map_threads(one, range(len(case.contrasts)))


def contradictions(contrasts: Sequence[Contrast], found: Sequence[Ratios]) -> Iterator[Contradiction]:
    """All orders that images break as these contrasts, or keep, with a margin below zero then."""
    for contrast, ratios in zip(contrasts, found):
        for order in contrast.darker:
            dark, bright = order.tissue, order.than
            if (dark, bright) in ratios:
                text = f"{WORDS[dark]} is brighter than {WORDS[bright]} in the image given as {contrast.name}"
                yield Contradiction(ratios[dark, bright], text, order.weak)
    for contrast, ratios in zip(contrasts, found):
        for other, theirs in zip(contrasts, found):
            for below in contrast.ratio_below:
                pair = below.tissue, below.to
                if other.name in below.contrasts and pair in ratios and pair in theirs:
                    text = (
                        f"{WORDS[below.tissue]} is brighter against {WORDS[below.to]} in the image given as "
                        f"{contrast.name} than in the one given as {other.name}"
                    )
                    yield Contradiction(ratios[pair] - theirs[pair], text)


def explained_by(contrasts: Sequence[Contrast], found: Sequence[Ratios]) -> tuple[str, str] | None:
    """The names of two contrasts that, exchanged, leave no contradiction, if there are just two such."""
    out = set()
    for a, b in combinations(range(len(contrasts)), 2):
        if contrasts[a].name == contrasts[b].name or not found[a] or not found[b]:
            continue
        exchanged = list(contrasts)
        exchanged[a], exchanged[b] = contrasts[b], contrasts[a]
        if all(c.margin < DOUBTFUL for c in contradictions(exchanged, found)):
            out.add((contrasts[a].name, contrasts[b].name))
    return out.pop() if len(out) == 1 else None


def _rank(found: Contradiction) -> tuple[bool, bool, float]:
    """What refuses before what is noted, the plainer sentence about one image first, then by margin."""
    refuses = found.margin >= CLEAR and not found.is_weak
    return refuses, found.margin >= DOUBTFUL and "against" not in found.text, found.margin


def _medians(
    values: npt.NDArray[np.float32], blocks: npt.NDArray[np.int64], total: int
) -> npt.NDArray[np.float64]:
    """(total,) median of each block; NaN where there are too few values."""
    seen = np.isfinite(values)
    values, blocks = values[seen], blocks[seen]
    out = np.full(total, np.nan)
    enough = np.flatnonzero(np.bincount(blocks, minlength=total) >= FEWEST_VOXELS)
    if len(enough):
        out[enough] = ndi.median(values, blocks, enough)
    return out
