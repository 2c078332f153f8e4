"""Notes on a resection cavity: what is left of the tumor, and whether to look for a cavity at all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import ndimage as ndi

from tumoar.geometry.distance import distance_to
from tumoar.model.bias import field
from tumoar.model.cavity import find_blood
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.result.parts import LEAST_CAVITY, LEAST_CORE, find_closed, find_wall
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.contrasts import fluid_is_identifiable
from tumoar.vocabulary.notes import Note

Mask = npt.NDArray[np.bool_]

LINEAR = 5.0
"""Millimeters below which enhancement along the wall of a cavity may be due to surgery."""
SUGGESTED = 2.0
"""cm³ of fluid from which `--postop` is suggested."""
RIM = 0.15
"""Fraction of its surface that must enhance for that."""
UNEXPECTED = 0.2
"""Prior probability of CSF below which fluid is unexpected."""


def review_cavity(result: Segmentation) -> list[Note]:
    """Notes on cavity and residual tumor; without that class, whether the images ask for it."""
    if not result.config.tumor:
        return []
    if result.table.cavity is None:
        return _suggest(result)
    cubic = result.case.grid.voxel_volume / 1000
    cavity = result.votes.l == result.table.cavity
    residual = (result.votes.y == 1) & ~cavity
    notes = []
    if not cavity.any():
        text, action = "no resection cavity found", "omit --postop if there was no surgery"
        notes.append(Note("cavity", text, action=action, where="Cavity"))
    if float(residual.sum()) * cubic < LEAST_CORE:
        text = f"no residual enhancement found ({residual.sum() * cubic:.2f} cm³)"
        notes.append(Note("residual", text, level="info", where="GTV_residual"))
    thin = float(find_linear(residual, cavity, result.case.grid.spacing).sum()) * cubic
    if thin >= LEAST_CORE:
        whole = float(residual.sum()) * cubic
        text = f"{thin:.1f} of {whole:.1f} cm³ is thinner than {LINEAR:g} mm and follows the cavity's wall"
        notes.append(
            Note("residual", text, action="it may be due to surgery: check it", where="GTV_residual")
        )
    fit = result.fit
    blood = residual & find_blood(fit.labels, result.case.contrasts, result.case.D, fit.theta)
    bright = float(ndi.binary_opening(blood).sum()) * cubic
    if bright >= LEAST_CORE:
        text = f"{bright:.1f} cm³ is as bright in T1 as in T1c"
        notes.append(Note("residual", text, action="it may be blood: check it", where="GTV_residual"))
    closed = float(result.closed.sum()) * cubic
    if closed >= LEAST_CAVITY:
        text = f"{closed:.1f} cm³ of fluid in the tumor has no way to the surface and counts as tumor"
        notes.append(Note("cavity", text, where="Cavity"))
    brain, nowhere = result.table.in_brain[result.votes.l], np.zeros(cavity.shape, bool)
    deep = find_closed(cavity, brain, nowhere, result.case.grid.spacing, cubic)
    enclosed = float((deep & cavity & ~result.film).sum()) * cubic
    if enclosed >= LEAST_CAVITY:
        text = f"{enclosed:.1f} cm³ of fluid has no way to the surface and counts as cavity"
        notes.append(Note("cavity", text, action="check that it is no cyst", where="Cavity"))
    if not any(c.name == "T1" for c in result.case.contrasts):
        text = "without a T1, blood products cannot be told from enhancement"
        notes.append(Note("cavity", text, where="Cavity"))
    return notes


def find_linear(residual: Mask, cavity: Mask, spacing: npt.NDArray[np.float64]) -> Mask:
    """(X, Y, Z) residual tumor along the cavity's wall that is thinner than `LINEAR`.

    Edges of thicker parts, which taper off, do not count.
    """
    thin = find_wall(residual, cavity, LINEAR, spacing)
    thick = residual & ~thin
    if not (thin.any() and thick.any()):
        return thin
    parts, count = ndi.label(thin, np.ones((3, 3, 3)))
    reach = ndi.maximum(distance_to(thick, spacing.tolist()), parts, np.arange(1, count + 1))
    return np.asarray(np.append(False, reach > LINEAR)[parts])


def _suggest(result: Segmentation) -> list[Note]:
    """Suggest `--postop` for unexpected fluid with an enhancing rim that is open to the surface."""
    fluid = find_fluid(result)
    if fluid is None:
        return []
    case, votes = result.case, result.votes
    cubic = case.grid.voxel_volume / 1000
    fluid &= result.table.in_brain[votes.l] & ~_expects_fluid(result)
    parts, count = ndi.label(ndi.binary_opening(fluid))
    sizes = np.bincount(parts.ravel(), minlength=count + 1)[1:] * cubic
    nowhere = np.zeros(fluid.shape, bool)
    for number in 1 + np.flatnonzero(sizes >= SUGGESTED):
        part = parts == number
        if find_closed(part, result.table.in_brain[votes.l], nowhere, case.grid.spacing, cubic).any():
            continue
        shell = ndi.binary_dilation(part, iterations=3) & ~part
        if float((votes.y[shell] == 1).mean()) >= RIM:
            text = f"{sizes[number - 1]:.1f} cm³ of fluid with an enhancing rim looks like a resection cavity"
            return [Note("postop", text, action="use --postop after surgery", where="GTV")]
    return []


def find_fluid(result: Segmentation) -> Mask | None:
    """(X, Y, Z) voxels within the bounds on the fluid of a cavity in all contrasts that have such bounds.

    None without a contrast in which fluid is dark and tumor bright (FLAIR): necrosis looks alike in others.
    """
    case, theta, few = result.case, result.fit.theta, result.fit.labels
    if not fluid_is_identifiable(case.contrasts):
        return None
    out = np.ones(case.grid.shape, bool)
    for n, contrast in enumerate(case.contrasts):
        for c in contrast.constraints:
            if c.gmm != "cavity" or c.component != 0 or not all(few.has_gmm(ref) for ref in c.refs):
                continue
            means = [theta.mu[few.component_slice(few.x_named(ref)), n] for ref in c.refs]
            values = np.nan_to_num(case.D[n]) - field(theta.C[n : n + 1], case.grid.shape)[0]
            if c.op == ">=":
                out &= values >= max(m.max() for m in means) + c.log_offset
            else:
                out &= values <= min(m.min() for m in means) + c.log_offset
    return out & case.valid.all(0)


def _expects_fluid(result: Segmentation) -> Mask:
    """(X, Y, Z) where the fitted atlas expects CSF."""
    placed, atlas = result.fit.placed, result.fit.placed.atlas
    fluid = np.array([s.gmm == "CSF" for s in atlas.labels.structures]).astype(int)
    alpha = merge_labels(atlas.alpha, fluid)
    prior = rasterize(result.fit.nodes, placed.tetrahedra, alpha, placed.shape, 0)
    return np.asarray(prior[..., -1] >= UNEXPECTED) if fluid.any() else np.zeros(placed.shape, bool)
