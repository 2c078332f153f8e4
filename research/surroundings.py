"""Average what surrounds the brain in the training heads and write `src/tumoar/data/surroundings.npz`.

Heads that the atlas holds out are left out here too. Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np

from tumoar.geometry.image import Grid
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import prepare_head
from tumoar.train.surroundings import average_heads
from tumoar.vocabulary.labels import default_labels

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
OUT = PROJECT / "src" / "tumoar" / "data" / "surroundings.npz"


def read(path: Path):
    image = nib.as_closest_canonical(nib.load(path))
    source = np.asarray(image.dataobj).astype(np.int16)
    grid = Grid(source.shape, image.affine)
    return prepare_head(source, grid, default_heads(), default_labels(), name=path.name), source, grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leave-out", default="10,20", help="heads that are not used")
    parser.add_argument("--output", type=Path, default=OUT)
    parser.add_argument("--quick", action="store_true", help="two heads, nothing written")
    options = parser.parse_args()
    left_out = set(options.leave_out.split(","))
    paths = [p for p in sorted((DATA / "heads").glob("head_*.nii.gz")) if p.name[5:7] not in left_out]
    start = time.perf_counter()
    paths = paths[:2] if options.quick else paths
    result = average_heads((read(p) for p in paths), default_labels(), default_heads())
    parts = np.round(255 * result.parts).astype(np.uint8)
    if not options.quick:
        points = np.array(list(result.landmarks.values()))
        names = np.array(list(result.landmarks))
        np.savez_compressed(
            options.output, parts=parts, affine=result.grid.affine, landmarks=points, names=names
        )
    shares = dict(zip(("air", "bone", "soft tissue"), np.round(result.parts.mean((0, 1, 2)), 4).tolist()))
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"heads": [p.name[5:7] for p in paths], "shares": shares, "seconds": seconds}))


if __name__ == "__main__":
    main()
