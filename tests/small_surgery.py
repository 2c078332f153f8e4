"""The small head after surgery: a cavity open to the surface, with fluid in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import small_head
from small_head import LABELS

from tumoar.vocabulary.contrasts import find_contrast

CONTRASTS = ("T1", "T1c", "T2", "FLAIR")


def remove_core(whole=False):
    """D of the small head with most of its core removed, or all; cavity and residual core."""
    l, z, y = small_head.truth()
    points = np.stack(np.indices(l.shape), -1)
    tissue = LABELS.in_brain[l] & (l != LABELS.l("CSF"))
    cavity = (np.linalg.norm(points - [37.0, 25, 26], axis=-1) < 8) & tissue & (points[..., 0] > 31)
    y = np.zeros_like(y) if whole else np.where(cavity, 0, y)
    x = LABELS.x_of_l[l]
    x[z == 1], x[y == 1] = LABELS.edema, LABELS.core
    means = {
        "background": (1, 1, 1, 1), "GWM": (6.2, 6.0, 5.0, 5.5), "GGM": (5.8, 5.6, 5.3, 5.8),
        "CSF": (4.8, 4.8, 6.3, 4.6), "edema": (5.9, 5.7, 5.8, 6.5), "core": (5.8, 6.9, 5.9, 6.3),
    }  # fmt: skip
    mean = np.zeros((LABELS.X, 4))
    for name, value in means.items():
        mean[LABELS.x_named(name)] = value
    D = mean[x]
    D[cavity] = (4.9, 4.9, 6.2, 4.9)
    D = np.moveaxis(D + small_head.SD * np.random.default_rng(0).standard_normal(D.shape), -1, 0)
    return D.astype(np.float32), cavity, y == 1


def leave_blood(D, cavity):
    """D with blood in the hindmost third of the cavity, and where it is: bright in T1 and T1c."""
    y = np.indices(cavity.shape)[1]
    blood = cavity & (y <= np.quantile(y[cavity], 1 / 3))
    noise = small_head.SD * np.random.default_rng(1).standard_normal((4, int(blood.sum())))
    D = D.copy()
    D[:, blood] = np.array([6.7, 6.7, 5.2, 5.9])[:, None] + noise
    return D, blood


def case_of(D):
    """Case of the small head with these values."""
    case = small_head.case()
    contrasts = tuple(find_contrast(n) for n in CONTRASTS)
    inputs = tuple(replace(case.inputs[0], name=c.name) for c in contrasts)
    return replace(case, D=D, contrasts=contrasts, inputs=inputs)
