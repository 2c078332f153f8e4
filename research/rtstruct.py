"""Do contours and segments come back as they were meant, whoever reads them?

Random frames (oblique, either way up, unequal spacing of rows, columns and slices) with rods of 1 to 6
voxels, blobs of several parts and shells with holes, written as RTSTRUCT and DICOM-SEG. They are read back by
our own reader, by nothing but pydicom's tags and a point-in-polygon test, and by highdicom. Plastimatch knows
transverse slices only, and rt-utils only square slices of square pixels, so both get the same structures on
such slices. Rt-utils draws every pixel that a contour touches: it may see more, and what counts is that it
sees every voxel and nothing beyond the neighbors. A structure passes with a volume within 1 % or 3 voxels and
its center within 0.2 mm in the world, so that left stays left. Smooth contours are of structures that do not
touch the border of a slice, beyond which they would reach.

    python research/rtstruct.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import highdicom as hd
import numpy as np
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.io.dicom import Series, grid_of, only_series
from tumoar.io.rois import Roi
from tumoar.io.rtstruct_write import write_rtstruct
from tumoar.io.seg import write_seg
from tumoar.vocabulary.labels import Code

PROJECT = Path(__file__).resolve().parents[1]
RESULT = PROJECT / "research" / "results" / "rtstruct.md"
sys.path.insert(0, str(PROJECT / "tests"))

from rt_cases import random_frame, random_masks, transverse  # noqa: E402
from rt_files import write_series  # noqa: E402
from rt_readers import read_own, read_plainly, read_plastimatch, read_rt_utils  # noqa: E402

TRIPS = 300
CODE = Code("119238007", "Brain Stem")
RS, SMOOTH, SEG = "RS.dcm", "smooth.dcm", "SEG.dcm"
Masks = dict[str, np.ndarray]


def read_segments(path: Path, folder: Path, series: Series, names: Iterable[str]) -> Masks:
    """Segments by highdicom."""
    read = hd.seg.segread(path)
    uids = [series.headers[s.path].SOPInstanceUID for s in grid_of(series)[1]]
    pixels = read.get_pixels_by_source_instance(uids, assert_missing_frames_are_empty=True)
    return {name: pixels[..., n].transpose(2, 1, 0) > 0 for n, name in enumerate(names)}


def compared(read: np.ndarray, mask: np.ndarray, grid: Grid) -> dict[str, float]:
    """Voxels too many, their share, the distance of the centers in mm, and whether both bars are kept."""
    volume, true = float(read.sum()), int(mask.sum())
    away = np.inf
    if volume:
        centers = [np.average(np.argwhere(m), axis=0, weights=m[m > 0]) for m in (read.astype(float), mask)]
        away = float(np.linalg.norm(grid.world(centers[0]) - grid.world(centers[1])))
    excess = abs(volume - true)
    return {
        "voxels": excess,
        "percent": 100 * excess / true,
        "mm": away,
        "passed": float(excess <= max(0.01 * true, 3) + 1e-6 and away <= 0.2),
        "exact": float(np.abs(read - mask.astype(float)).max() < 1e-3),
        "touched": float(
            bool((read[mask] > 0.5).all())
            and not (read[~ndi.binary_dilation(mask, np.ones((3, 3, 1)))]).any()
        ),
    }


def trip(number: int, folder: Path, found: dict[str, list[dict[str, float]]]) -> None:
    """One set of structures through every reader."""
    rng = np.random.default_rng(10_000 + number)
    frame = random_frame(rng).grid
    masks = {n: m for n, m in random_masks(rng, frame.shape).items() if m.any()}
    as_is = _written(folder / "as_is", frame, masks, rng)
    for name, reader, file in (
        ("own reader", read_own, RS),
        ("pydicom, point in polygon", read_plainly, RS),
        ("highdicom, SEG", read_segments, SEG),
    ):
        found[name] += _compared(reader, as_is, file, masks)
    inner = {n: m & _inner(m.shape) for n, m in masks.items() if (m & _inner(m.shape)).any()}
    write_rtstruct(folder / "as_is" / SMOOTH, _rois(inner), as_is, smooth=True)
    found["own reader, smooth"] += _compared(read_own, as_is, SMOOTH, inner)
    found["pydicom, point in polygon, smooth"] += _compared(read_plainly, as_is, SMOOTH, inner)
    if shutil.which("plastimatch"):
        plain = _written(folder / "plain", transverse(frame), masks, rng)
        found["plastimatch"] += _compared(read_plastimatch, plain, RS, masks)
    # Rt-utils mixes up rows and columns unless there are as many of both.
    rim = frame.shape[0] - frame.shape[1]
    squares = {n: np.pad(m, ((0, 0), (0, rim), (0, 0))) for n, m in masks.items()}
    square = Grid((frame.shape[0], frame.shape[0], frame.shape[2]), transverse(frame, square=True).affine)
    drawn = _written(folder / "square", square, squares, rng)
    found["rt-utils"] += _compared(read_rt_utils, drawn, RS, squares)


def _written(folder: Path, grid: Grid, masks: Masks, rng: np.random.Generator) -> Series:
    """A series, and beside it the structures, which lie on its voxels in its own order of slices."""
    write_series(folder / "ct", rng.integers(0, 2000, grid.shape).astype(float), grid, modality="CT")
    series = only_series(folder / "ct")
    write_rtstruct(folder / RS, _rois(masks), series)
    write_seg(folder / SEG, _rois(masks), series)
    return series


def _rois(masks: Masks) -> list[Roi]:
    return [Roi(name, "ORGAN", "#2ca02c", mask, CODE) for name, mask in masks.items()]


def _inner(shape: tuple[int, ...]) -> np.ndarray:
    """All but a rim of one voxel around every slice."""
    out = np.zeros(shape, bool)
    out[1:-1, 1:-1] = True
    return out


def _compared(
    reader: Callable[..., Masks], series: Series, file: str, masks: Masks
) -> list[dict[str, float]]:
    images = series.slices[0].path.parent
    grid, _ = grid_of(series)
    read = reader(images.with_name(file), images, series, masks)
    return [compared(read[name], mask, grid) for name, mask in masks.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 round trips, nothing written")
    quick = parser.parse_args().quick
    start, trips = time.perf_counter(), 10 if quick else TRIPS
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(trips):
        with tempfile.TemporaryDirectory() as folder:
            trip(number, Path(folder), found)
    if not quick:
        RESULT.write_text(page(found, trips), encoding="utf-8")
    figures: dict[str, float] = {"trips": trips}
    for name, rows in found.items():
        key = "touched" if name == "rt-utils" else "passed"
        figures[name] = sum(r[key] for r in rows) / len(rows)
    print(json.dumps(figures | {"seconds": round(time.perf_counter() - start, 1)}))


def page(found: dict[str, list[dict[str, float]]], trips: int) -> str:
    text = (__doc__ or "").split("\n\n", 1)[1].split("\n\n    python")[0].replace("\n", " ")
    lines = [
        "# Contours and segments read back",
        "",
        f"{trips} random sets of structures. {text}",
        "",
        "| reader | structures | every voxel as meant | within both bars "
        "| seen, and nothing beyond neighbors | largest excess, voxels | largest distance of centers, mm |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        counts = [int(sum(r[key] for r in rows)) for key in ("exact", "passed", "touched")]
        worst = [max(r[key] for r in rows) for key in ("voxels", "mm")]
        cells = [len(rows), *counts, f"{worst[0]:.2f}", f"{worst[1]:.3f}"]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += ["", "    python research/rtstruct.py"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
