"""Quality checks of the organs of a result: pieces, volumes, what tumor hides, what the images cannot show.

The organs that are judged, and the volumes of adults with their sources, are in `data/organ_checks.toml`.
What organs of an atlas lack of what planners draw is in the card of the atlas.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import HOUNSFIELD_UNIT
from tumoar.model.atlas import Atlas
from tumoar.result.segmentation import Segmentation, organ_mask
from tumoar.result.specks import find_parts
from tumoar.vocabulary.notes import CONVENTION, Level, Note
from tumoar.vocabulary.organs import expected_organs

Mask = npt.NDArray[np.bool_]

SEEN = 0.95
"""Fraction of an organ in voxels with data from which the images show it whole."""
WHOLE = 0.9
"""Fraction of an organ in its largest piece below which it is in pieces, even if the others are specks."""
HIDDEN = 0.5
"""Fraction of an organ under tumor above which it counts as hidden: the result needs review."""
COVERED = 0.05
"""Fraction of an organ under tumor above which it is noted."""

METAL = 3000.0
"""HU from which a voxel is metal: dense enamel has less."""
LEAST_METAL = 10
"""Voxels of metal in the slices of an organ from which it is noted."""
BESIDE = 5.0
"""Millimeters above and below an organ in which the slices count as its own: streaks lie in slices."""


def organs_lack(atlas: Atlas) -> Mapping[str, str]:
    """What organs of an atlas lack of what planners draw, by name, as its card says."""
    lacks = atlas.provenance.get("lacks", {})
    return {str(organ): str(text) for organ, text in lacks.items()} if isinstance(lacks, Mapping) else {}


def review_organs(result: Segmentation, seen: Mapping[str, float]) -> list[Note]:
    """Notes on organs; `seen` is the fraction of each that lies in voxels with data.

    Volumes and pieces of organs that the images show in part are not judged.
    """
    notes = []
    votes, cubic = result.votes, result.case.grid.voxel_volume / 1000
    lacks = organs_lack(result.fit.placed.atlas)
    only_ct = all(contrast.transform == "hounsfield" for contrast in result.case.contrasts)
    for organ in result.table.organs:
        expected = expected_organs().get(organ.name)
        if expected is None or not organ.structures:
            continue
        if only_ct and not expected.seen_on_ct:
            text = "CT does not show it: its outline is what the atlas expects"
            notes.append(Note("unseen-organ", text, action="add an MR image", where=organ.name))
        judged = seen.get(organ.name, 1.0) >= SEEN and not _is_stripped(result, organ.structures)
        mask = organ_mask(result.table, organ, votes)
        if not mask.any():
            if judged and _is_in_atlas(result, organ.structures):
                notes.append(Note("organ-volume", "nothing of it was found", where=organ.name))
            continue
        if organ.name in lacks:
            action = "extend it by hand before you judge its dose"
            notes.append(Note(CONVENTION, lacks[organ.name], level="info", action=action, where=organ.name))
        if _count_metal(result, mask) >= LEAST_METAL:
            notes.append(
                Note("metal", "metal lies in its slices: streaks may hide its borders", where=organ.name)
            )
        hidden = float((votes.z == 1)[mask].mean())
        if hidden > COVERED:
            text = f"{hidden:.0%} of it lies under tumor: shown by the atlas, not by the images"
            level: Level = "review" if hidden > HIDDEN else "info"
            notes.append(Note("under-tumor", text, level=level, where=organ.name))
        if not judged:
            continue
        parts = find_parts(mask, cubic)
        if parts.largest < WHOLE or parts.large.sum() > 1:
            share = min(parts.largest, 0.99)  # of more than one piece
            text = f"is in {len(parts.cm3) - 1} pieces, the largest has {share:.0%} of it"
            notes.append(Note("pieces", text, action="check its outline", where=organ.name))
        volume, (low, high) = float(mask.sum()) * cubic, expected.volume
        if not low <= volume <= high:
            text = f"has {volume:.2f} cm³, adults have {low:g} to {high:g}"
            notes.append(Note("organ-volume", text, action="check its outline", where=organ.name))
    return notes


def _count_metal(result: Segmentation, mask: Mask) -> int:
    """Voxels of metal on CT in the slices of an organ."""
    slices = np.flatnonzero(mask.any((0, 1)))
    margin = round(BESIDE / float(result.case.grid.spacing[2]))
    near = slice(max(slices[0] - margin, 0), slices[-1] + margin + 1)
    channels = [n for n, contrast in enumerate(result.case.contrasts) if not contrast.is_mr]
    return int((result.case.D[channels][..., near] >= METAL / HOUNSFIELD_UNIT).sum())


def _is_in_atlas(result: Segmentation, structures: tuple[str, ...]) -> bool:
    columns = [result.table.l(name) for name in structures]
    return bool(result.fit.placed.atlas.alpha[:, columns].any())


def _is_stripped(result: Segmentation, structures: tuple[str, ...]) -> bool:
    """Whether skull stripping has removed these structures, or part of them."""
    table = result.table
    return result.case.skull_stripped and not all(
        table.structures[table.l(name)].in_brain for name in structures
    )
