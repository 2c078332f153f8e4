"""Where tumor lies relative to normal tissue in each contrast: offsets and bounds of the contrast table.

python research/intensities.py NAME

Reads the results that `research/patients.py run NAME` has left, for white and gray matter away from the
tumor, and the reference outlines, for edema and core: statistics with the tumor fixed to the truth, from
which the paper took its constraints (section 3.3). Prints the mean offset of edema and core from white matter
in log intensity, the mean spread within a patient, how far the offsets move when a patient is left out, and
for each constraint of the table the patients that violate it.
"""

from __future__ import annotations

import sys

import numpy as np
from patients import RESULTS, patients
from scipy import ndimage

from tumoar.api import load_result
from tumoar.io.nifti import read_nifti
from tumoar.vocabulary.contrasts import find_contrast

CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
TISSUES = {"GWM": "white matter", "GGM": "gray matter"}
MARGIN = 5
"""Voxels around the reference in which tissue does not count as normal."""


def medians(name: str) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """Median and robust deviation of log intensity, by patient, contrast and tissue."""
    out: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for patient in patients():
        folder = RESULTS / name / patient.name
        if not (folder / "run.json").exists():
            continue
        reference = np.asarray(read_nifti(patient / "tumor.nii.gz").data)
        stored = load_result(folder)
        index = {s.name: s.index for s in stored.table.structures}
        labels = np.asarray(read_nifti(folder / "segmentation.nii.gz").data)
        away = ~ndimage.binary_dilation(reference > 0, iterations=MARGIN)
        places = {k: (labels == index[structure]) & away for k, structure in TISSUES.items()}
        places |= {"edema": reference == 1, "core": reference > 1, "enhancing": reference == 3}
        images = {c: np.asarray(read_nifti(patient / f"{c.lower()}.nii.gz").data, float) for c in CONTRASTS}
        out[patient.name] = {
            c: {k: _robust(image[at & (image > 0)]) for k, at in places.items()}
            for c, image in images.items()
        }
    return out


def _robust(values: np.ndarray) -> tuple[float, float]:
    if len(values) < 50:
        return np.nan, np.nan
    logs = np.log(values)
    middle = float(np.median(logs))
    return middle, float(1.4826 * np.median(np.abs(logs - middle)))


def main() -> None:
    found = medians(sys.argv[1])
    for contrast in CONTRASTS:
        rows = [found[n][contrast] for n in found]
        for part in ("edema", "core", "enhancing"):
            offset = np.array([r[part][0] - r["GWM"][0] for r in rows])
            spread = np.nanmean([r[part][1] for r in rows])
            mean, count = np.nanmean(offset), np.isfinite(offset).sum()
            moved = np.nanmax(np.abs(offset - mean)) / max(count - 1, 1)
            low, high = np.nanmin(offset), np.nanmax(offset)
            print(f"{contrast} {part}: offset {mean:.2f}, from {low:.2f} to {high:.2f}, spread {spread:.2f};")
            print(f"  leaving a patient out moves the offset by at most {moved:.2f}")
        for c in find_contrast(contrast).constraints:
            part = "enhancing" if c.gmm == "core" else c.gmm
            if part not in ("edema", "enhancing"):
                continue
            sign = 1 if c.op == ">=" else -1
            slack = {
                n: min(sign * (r[part][0] - r[ref][0] - c.log_offset) for ref in c.refs if ref in TISSUES)
                for n, r in zip(found, rows)
            }
            broken = [f"{n} by {-s:.2f}" for n, s in slack.items() if s < 0]
            by = ", ".join(broken) or "none"
            print(f"  {c.gmm} {c.op} {', '.join(c.refs)} + {c.log_offset:.2f}: broken by {by}")


if __name__ == "__main__":
    main()
