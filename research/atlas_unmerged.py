"""The same training with other tables: deep brain structures left unmerged, by name and side.

    python research/atlas_unmerged.py [--quick]

Only tables change: structures are added to the labels, and their codes move from gray matter and CSF to rows
of their own. A short training (3 heads, 2 coarse levels) is fitted to a head it has not seen.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from tumoar.geometry.orientation import reorient
from tumoar.io.nifti import read_nifti
from tumoar.numerics import tetra
from tumoar.numerics.tetra_raster import rasterize
from tumoar.train.align import align
from tumoar.train.atlas import AtlasSettings, Level, fit, train
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import prepare_head
from tumoar.vocabulary.labels import Structure, default_labels

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", ROOT.parent / "shared" / "data"))
# name: codes on the left and right, the mixture that models it, and the row it is taken from
UNMERGED = {
    "thalamus": (10, 49, "deep gray", "deep gray matter"),
    "caudate": (11, 50, "deep gray", "deep gray matter"),
    "putamen": (12, 51, "deep gray", "deep gray matter"),
    "pallidum": (13, 52, "deep gray", "deep gray matter"),
    "amygdala": (18, 54, "GGM", "gray matter"),
    "lateral ventricle": (4, 43, "CSF", "CSF"),
}
TRAINED, HELD_OUT = ["02", "03", "06"], "10"


def tables():
    labels, heads = default_labels(), default_heads()
    structures, codes = list(labels.structures), dict(heads.structures)
    for n, (name, (left, right, gmm, parent)) in enumerate(UNMERGED.items()):
        pair = {"left": left, "right": right}
        for k, (side, code) in enumerate(pair.items()):
            other = f"{'right' if side == 'left' else 'left'} {name}"
            row = Structure(f"{side} {name}", 20 + 2 * n + k, True, gmm, "#808080", side, other)
            structures.append(row)
            codes[parent] = tuple(c for c in codes[parent] if c != code)
            codes[row.name] = (code,)
    return replace(labels, structures=tuple(structures)), replace(heads, structures=codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    labels, table = tables()
    numbers = [*TRAINED[: 2 if options.quick else 3], HELD_OUT]
    heads = []
    for number in numbers:
        image, _ = reorient(read_nifti(DATA / "heads" / f"head_{number}.nii.gz"))
        heads.append(prepare_head(image.data.astype(np.int32), image.grid, table, labels))
    common = align(heads[:-1], labels)
    *maps, truth = (common.place(head, labels) for head in heads)
    levels = (Level((12.0,), 2),) if options.quick else (Level((12.0,), 6), Level((4.0, 5.0, 7.0), 8))
    settings = AtlasSettings(levels=levels, collapses=0)
    state = None
    for state, _ in train(np.stack(maps), labels, settings, 0):  # noqa: B007
        pass
    evaluations = 6 if options.quick else 40
    nodes = fit(state.reference, state.tetrahedra, state.alpha, truth, settings, evaluations)
    guess = rasterize(nodes, state.tetrahedra, state.alpha, truth.shape).argmax(-1)
    dice = {}
    for k, structure in enumerate(s for s in labels.structures if s.trained):
        a, b = guess == k, truth == k
        dice[structure.name] = round(float(2 * (a & b).sum() / (a.sum() + b.sum())), 3)
    ratios = tetra.volumes(nodes, state.tetrahedra) / tetra.volumes(state.reference, state.tetrahedra)
    if not options.quick:
        write(dice, len(state.reference))
    print(json.dumps({"nodes": len(state.reference), "folded": int((ratios <= 0).sum()), "dice": dice}))


def write(dice, nodes):
    lines = [
        "# Brain structures left unmerged",
        "",
        f"Only the tables changed. A short training on heads {', '.join(TRAINED)} ({nodes} nodes), fitted to "
        f"the labels of head {HELD_OUT}, which it has not seen; Dice of the most probable label.",
        "",
        "| structure | Dice |",
        "|---|---|",
        *[f"| {name} | {value:.3f} |" for name, value in dice.items()],
    ]
    out = ROOT / "research" / "results" / "atlas_unmerged.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
