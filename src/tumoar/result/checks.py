"""Quality checks of a result.

Checks before sampling refuse images that cannot give a result; checks after sampling note what looks
doubtful. A result with such a note NEEDS REVIEW. A note does not mean that a result is wrong, and no note
does not mean that it is right.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.image import Case
from tumoar.model.atlas import Placed
from tumoar.numerics import tetra
from tumoar.numerics.autocorrelation import effective_size
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.placement.tissue_order import WORDS
from tumoar.preprocess.quality import MOST_UNUSABLE
from tumoar.result.cavity import review_cavity
from tumoar.result.organ_checks import review_organs
from tumoar.result.parts import gtv_is_whole
from tumoar.result.scores import dice
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.contrasts import core_is_identifiable, edema_is_visible
from tumoar.vocabulary.errors import ChannelError
from tumoar.vocabulary.labels import TUMOR_STATES
from tumoar.vocabulary.notes import Note

Mask = npt.NDArray[np.bool_]

LEAST_TUMOR = 1.0  # cm³: less counts as no tumor
LEAST_APART = 0.5  # cm³: omitted from the outlines, but worth a look
LARGEST_TUMOR = 0.5  # of the brain
NOT_SEEN, PARTLY_SEEN = 0.5, 0.95  # fraction of an organ in voxels with data
LARGEST_DRIFT = 0.05  # of a volume, from the first to the second half of the samples
FEWEST_EFFECTIVE = 10.0  # independent samples
LEAST_AGREEMENT = 0.9  # Dice between chains
SWAPPED = "swapped"
CLEARLY = 0.05  # in log intensity: gray and white matter may come close


def check_coverage(case: Case, placed: Placed) -> None:
    """B24: require values in nearly all of the brain, except its rim (stripping tools differ)."""
    atlas = placed.atlas
    brain = merge_labels(
        atlas.alpha, atlas.labels.in_brain.astype(int)
    )  # column 0, not brain, beyond the mesh
    prior = rasterize(placed.reference, placed.tetrahedra, brain, placed.shape, 0)[..., 1]
    inner = ndi.binary_erosion(prior > 0.95, iterations=5)
    for contrast, valid in zip(case.contrasts, case.valid):
        share = 1 - float(valid[inner].mean()) if inner.any() else 0.0
        if share > MOST_UNUSABLE:
            raise ChannelError(
                "B24",
                f"{contrast.name} has no usable value in {share:.0%} of the brain",
                do="give the image unprocessed and whole",
            )


def review(result: Segmentation) -> tuple[Note, ...]:
    """All notes on a result, including those on its images."""
    notes = [*result.case.notes, *result.placement.notes]
    for check in (_unseen, _tumor, review_cavity, _contrasts, _sides, _chain, _agreement):
        notes += check(result)
    notes += review_organs(result, visible_fractions(result))
    return tuple(sorted(notes, key=lambda note: note.id != SWAPPED))  # it puts all others in doubt


def visible_fractions(result: Segmentation) -> dict[str, float]:
    """Fraction of each organ of the fitted atlas that lies in voxels with data."""
    placed, nodes = result.fit.placed, result.fit.nodes
    corners = nodes[placed.tetrahedra]
    volume = tetra.volumes(nodes, placed.tetrahedra)
    center = np.rint(corners.mean(1)).astype(int)
    inside = ((center >= 0) & (center < result.case.grid.shape)).all(1)
    has_data = np.zeros(len(center), bool)
    valid = np.all(result.case.valid, axis=0)
    has_data[inside] = valid[tuple(center[inside].T)]
    out = {}
    for organ in result.table.organs:
        columns = [result.table.l(s) for s in organ.structures]
        mass = volume * placed.atlas.alpha[:, columns].sum(1)[placed.tetrahedra].mean(1)
        out[organ.name] = float(mass[has_data].sum() / mass.sum()) if columns and mass.sum() > 0 else 1.0
    return out


def _unseen(result: Segmentation) -> list[Note]:
    if result.case.skull_stripped:
        gone = [o.name for o in result.table.organs if o.structures and not _in_brain(result, o.structures)]
        return [Note("B40", f"skull-stripped images do not show {', '.join(gone)}")]
    notes = []
    for organ, share in visible_fractions(result).items():
        if share < NOT_SEEN:
            notes.append(Note("B37", f"NOT SEEN, {1 - share:.0%} of it lies outside the images", where=organ))
        elif share < PARTLY_SEEN:
            text = f"seen in part, {1 - share:.0%} of it lies outside the images"
            notes.append(Note("B37", text, where=organ))
    return notes


def _tumor(result: Segmentation) -> list[Note]:
    if not result.config.tumor:
        return []
    votes, cubic = result.votes, result.case.grid.voxel_volume / 1000
    whole = float(votes.z.sum()) * cubic
    brain = float(result.table.in_brain[votes.l].sum()) * cubic
    notes = []
    if whole < LEAST_TUMOR:
        notes.append(Note("B43", f"no tumor found ({whole:.2f} cm³)"))
    if gtv_is_whole(result.table):
        why = "as asked for" if result.config.gtv == "flair" else "no enhancing core was found"
        text = f"the GTV is the whole T2/FLAIR abnormality: {why}"
        notes.append(Note("T51", text, action="check the target", where="GTV"))
    elif whole >= LEAST_TUMOR and not votes.y.any():
        notes.append(Note("T51", "no enhancing core was found: the GTV is empty", where="GTV"))
    apart = float(result.islands.sum()) * cubic
    if apart >= LEAST_APART:
        notes.append(Note("apart", f"{apart:.1f} cm³ in small parts apart from the tumor are not outlined"))
    if not edema_is_visible(result.case.contrasts):
        text = "edema hardly shows without a FLAIR or T2: its outline is a guess"
        notes.append(Note("T52", text, action="add one, or use enhancing core only", where="Edema"))
    if not core_is_identifiable(result.case.contrasts):
        notes.append(Note("B42", "core NOT IDENTIFIABLE without a T1c", action="use the whole tumor only"))
    if whole > LARGEST_TUMOR * brain:
        notes.append(Note("B44", f"tumor fills {whole / brain:.0%} of the brain"))
    faces = [np.take(votes.z, end, axis) for axis in range(3) for end in (0, -1)]
    if any(face.any() for face in faces):
        notes.append(Note("B44", "tumor reaches the border of the image"))
    return notes


def _contrasts(result: Segmentation) -> list[Note]:
    """Note contrasts whose fitted tissue intensities are in the wrong order for their name."""
    notes = []
    table, theta = result.table, result.fit.theta
    few = result.fit.labels

    def mean(gmm: str, channel: int) -> float:
        q = few.component_slice(table.x_named(gmm))
        return float(np.average(theta.mu[q, channel], weights=theta.gamma[q]))

    for channel, contrast in enumerate(result.case.contrasts):
        wrong = [
            f"{WORDS[order.tissue]} is brighter than {WORDS[order.than]}"
            for order in contrast.darker
            if table.has_gmm(order.tissue)
            and table.has_gmm(order.than)
            and mean(order.tissue, channel) > mean(order.than, channel) + CLEARLY
        ]
        action = f"check that the image is a {contrast.name}"
        notes += [Note("B27", text, action=action, where=contrast.name) for text in wrong[:1]]
    return notes


def _sides(result: Segmentation) -> list[Note]:
    """Note left organs that do not lie left of their partners; the first axis runs from left to right."""
    table, l = result.table, result.votes.l
    notes = []
    for s in table.structures:
        if s.side == "left" and s.mirror:
            places = [np.flatnonzero((l == table.l(name)).any((1, 2))) for name in (s.name, s.mirror)]
            if all(len(p) for p in places) and places[0].mean() >= places[1].mean():
                notes.append(Note("B36", f"does not lie left of {s.mirror}", where=s.name))
    return notes


def _chain(result: Segmentation) -> list[Note]:
    """Note volumes that still drift, and small effective sample sizes."""
    notes = []
    for part in result.table.tumor if result.config.tumor else ():
        organ = next((o.name for o in result.table.organs if o.tumor == (part.name,)), part.name)
        for tally in result.tallies:
            column = result.table.K + TUMOR_STATES[part.name][1]
            series = np.array(tally.volumes)[:, column].astype(float)
            series *= result.case.grid.voxel_volume / 1000
            if len(series) < 20 or series.mean() < LEAST_TUMOR:
                continue
            first, second = np.array_split(series, 2)
            drift = abs(second.mean() - first.mean()) / series.mean()
            if drift > LARGEST_DRIFT:
                text = f"volume still drifts by {drift:.0%} over the samples"
                notes.append(Note("drift", text, action="raise --burn-in", where=organ))
            if series.std() / series.mean() > 0.02 and effective_size(series) < FEWEST_EFFECTIVE:
                text = f"effective sample size is {effective_size(series):.0f}"
                notes.append(Note("mixing", text, action="raise --samples", where=organ))
    return notes


def _agreement(result: Segmentation) -> list[Note]:
    """Note chains that disagree on the tumor."""
    votes = [tally.vote(result.config.vote) for tally in result.tallies] if len(result.tallies) > 1 else []
    notes = []
    for name in ("z", "y"):
        pairs = [
            dice(getattr(a, name) == 1, getattr(b, name) == 1)
            for i, a in enumerate(votes)
            for b in votes[i + 1 :]
        ]
        if pairs and min(pairs) < LEAST_AGREEMENT:
            what = "tumor" if name == "z" else "core"
            text = f"chains agree only to a Dice of {min(pairs):.2f}"
            notes.append(Note("chains", text, action="raise --burn-in or --samples", where=what))
    return notes


def _in_brain(result: Segmentation, structures: tuple[str, ...]) -> bool:
    return any(result.table.structures[result.table.l(s)].in_brain for s in structures)
