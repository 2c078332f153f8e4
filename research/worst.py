"""Pictures of the development patients with the lowest Dice of whole tumor, in three planes.

python research/worst.py NAME [--count 5] [--patients NAMES] [--folder docs/images]

NAME is a run of research/patients.py. The planes go through the largest error. Ours is drawn solid, the
reference dashed; whole tumor orange, core blue.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from patients import PROJECT, RESULTS, patients, scores
from PIL import Image
from plots import stamp
from scipy import ndimage

from tumoar.api import load_result
from tumoar.geometry.orientation import reorient
from tumoar.io.nifti import read_nifti

mpl.use("Agg")
import matplotlib.pyplot as plt

COLORS = {"whole": "#E69F00", "core": "#56B4E9"}
PLANES = ("sagittal", "coronal", "axial")
SHOWN = ("flair", "t1c")


def canonical(path: Path) -> npt.NDArray:
    """Voxels in the order right, front, up."""
    return np.asarray(reorient(read_nifti(path))[0].data)


def find_worst_error(wrong: npt.NDArray[np.bool_]) -> list[int]:
    """A voxel in the middle of the largest connected error."""
    parts, count = ndimage.label(ndimage.binary_erosion(wrong))
    if not count:
        parts, count = ndimage.label(wrong)
    largest = 1 + int(np.argmax(np.bincount(parts.ravel())[1:])) if count else 0
    points = np.argwhere(parts == largest)
    return [int(v) for v in points[np.argmin(((points - points.mean(0)) ** 2).sum(1))]]


def draw(patient: Path, out: Path, path: Path, title: str) -> None:
    reference = canonical(patient / "tumor.nii.gz")
    table = {s.name for s in load_result(out).table.organs}
    masks = {n: canonical(out / "structures" / f"{n}.nii.gz") > 0 for n in ("GTV", "Edema") if n in table}
    ours = {"whole": masks["GTV"] | masks["Edema"], "core": masks["GTV"]}
    true = {"whole": reference > 0, "core": reference > 1}
    at = find_worst_error(ours["whole"] != true["whole"])
    figure, axes = plt.subplots(len(SHOWN), 3, figsize=(10, 6.4), facecolor="black")
    for row, contrast in zip(axes, SHOWN):
        image = canonical(patient / f"{contrast}.nii.gz").astype(float)
        brightest = float(np.percentile(image[image > 0], 99.5))
        for axis, (ax, plane) in enumerate(zip(row, PLANES)):
            ax.imshow(image.take(at[axis], axis).T, cmap="gray", vmin=0, vmax=brightest, origin="lower")
            for part, color in COLORS.items():
                for mask, style in ((ours[part], "solid"), (true[part], "dashed")):
                    cut = mask.take(at[axis], axis).T
                    if cut.any():
                        ax.contour(cut, [0.5], colors=color, linewidths=0.9, linestyles=style)
            ax.set_axis_off()
            if row is axes[0]:
                ax.set_title(plane, color="white", fontsize=8)
    figure.suptitle(title, color="white", fontsize=9)
    figure.subplots_adjust(0, 0, 1, 0.91, 0.01, 0.01)
    figure.savefig(path, dpi=90, facecolor="black")
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64)
    small.save(path, optimize=True)
    used = load_result(out).manifest["model"]
    stamp(path, ", ".join(f"{name} {digest[:12]}" for name, digest in used.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--patients", help="these instead of the worst, separated by commas")
    parser.add_argument("--folder", type=Path, default=PROJECT / "docs" / "images")
    options = parser.parse_args()
    found = scores(options.name)
    worst = sorted(found, key=lambda n: float(found[n]["whole_dice"]))[: options.count]
    chosen = options.patients.split(",") if options.patients else worst
    options.folder.mkdir(parents=True, exist_ok=True)
    for patient in patients():
        if patient.name not in chosen:
            continue
        row = found[patient.name]
        title = f"{patient.name}: whole {row['whole_dice']:.2f}, core {row['core_dice']:.2f}"
        number = chosen.index(patient.name) + 1
        path = options.folder / f"worst_{number}.png"
        draw(patient, RESULTS / options.name / patient.name, path, title)
        print(path.name, title)


if __name__ == "__main__":
    main()
