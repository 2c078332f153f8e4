"""The learned prior of tumor means: distances from white matter, per contrast and jointly."""

from __future__ import annotations

import numpy as np
import pytest

from tumoar.model.tumor_means import relate_tumor_means
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import default_labels

LABELS = default_labels()
VOXELS = {"core": 30.0, "edema": 50.0}


def rows(part: str, N: int) -> np.ndarray:
    """(N, Q N) mean of a part of tumor minus that of white matter."""
    K = np.zeros((N, LABELS.Q, N))
    q = LABELS.component_slice(LABELS.core if part == "core" else LABELS.edema).start
    white = LABELS.component_slice(LABELS.x_named("GWM")).start
    K[np.arange(N), q, np.arange(N)], K[np.arange(N), white, np.arange(N)] = 1, -1
    return K.reshape(N, -1)


@pytest.mark.parametrize("names", [("T1c",), ("FLAIR", "T1c"), ("T1", "T2", "T1c", "FLAIR")])
@pytest.mark.parametrize("part", ["core", "edema"])
def test_distances_have_the_mean_and_covariance_of_patients(part, names):
    contrasts = [find_contrast(n) for n in names]
    found = relate_tumor_means(LABELS, contrasts, VOXELS)
    K = rows(part, len(names))
    up = K.T / 2  # moves tumor up and white matter down by half: the distance by one
    precision = up.T @ found.J @ up
    # the other part of tumor hangs on the same white matter, which has moved by half
    other = rows("edema" if part == "core" else "core", len(names)) @ up
    deviation = np.sqrt(np.diag(np.linalg.inv(_own(precision, other, part, contrasts))))
    expected = [c.tumor_deviation[part] / np.sqrt(VOXELS[part]) for c in contrasts]
    np.testing.assert_allclose(deviation, expected, rtol=1e-6)
    mu = np.zeros(LABELS.Q * len(names))
    for each, start in (("core", LABELS.core), ("edema", LABELS.edema)):
        q = LABELS.component_slice(start).start
        mu.reshape(LABELS.Q, -1)[q] = [c.tumor_offset[each] for c in contrasts]
    np.testing.assert_allclose(found.J @ mu, found.j, atol=1e-6)  # the mean of patients is the mode


def _own(precision: np.ndarray, other: np.ndarray, part: str, contrasts: list) -> np.ndarray:
    """Remove what the other part adds to the precision."""
    from tumoar.model.tumor_means import _moments

    name = "edema" if part == "core" else "core"
    return precision - other.T @ (VOXELS[name] * np.linalg.inv(_moments(name, contrasts)[1])) @ other


def test_white_matter_and_tumor_may_move_together():
    contrasts = [find_contrast(n) for n in ("T1c", "FLAIR")]
    found = relate_tumor_means(LABELS, contrasts, VOXELS)
    together = np.ones(LABELS.Q * 2)
    np.testing.assert_allclose(found.J @ together, 0, atol=1e-9)
    assert found.j @ together == pytest.approx(0, abs=1e-9)


def test_contrasts_that_no_patient_has_shown_are_left_alone():
    assert relate_tumor_means(LABELS, [find_contrast("DIR"), find_contrast("CT")], VOXELS) is None
    found = relate_tumor_means(LABELS, [find_contrast("CT"), find_contrast("T1c")], VOXELS)
    assert not found.J.reshape(LABELS.Q, 2, LABELS.Q, 2)[:, 0].any()
    alone = relate_tumor_means(LABELS, [find_contrast("T1c")], VOXELS)
    np.testing.assert_allclose(found.J.reshape(LABELS.Q, 2, LABELS.Q, 2)[:, 1, :, 1], alone.J)


def test_contrasts_inform_each_other():
    """Edema that is brighter than usual in T2 is expected to be brighter in FLAIR."""
    contrasts = [find_contrast("T2"), find_contrast("FLAIR")]
    J = relate_tumor_means(LABELS, contrasts, VOXELS).J.reshape(LABELS.Q, 2, LABELS.Q, 2)
    q = LABELS.component_slice(LABELS.edema).start
    assert -J[q, 0, q, 1] / np.sqrt(J[q, 0, q, 0] * J[q, 1, q, 1]) > 0.5
