"""Organs by clinical definitions against what the label maps have, and against contours of experts.

python research/clinical.py measure      # 12 heads → build/clinical.json; continues where it was stopped
python research/clinical.py page         # → research/results/clinical.md
python research/clinical.py figure       # head 10 → docs/images/organs.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import nibabel as nib
import numpy as np
from head_cases import DATA, PROJECT
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.train.clinical import Clinical, clinical_rules, define_organs
from tumoar.train.eye_sockets import separate_globes
from tumoar.train.head_table import default_heads
from tumoar.train.prepare import largest_component

HEADS = ("01", "02", "03", "05", "06", "07", "08", "10", "13", "15", "18", "20")
KEPT = PROJECT / "build" / "clinical.json"
PAGE = PROJECT / "research" / "results" / "clinical.md"
FIGURE = PROJECT / "docs" / "images" / "organs.png"
ORGANS = ("Brainstem", "OpticChiasm", "OpticNrv_L", "OpticNrv_R", "Eye_L", "Eye_R")
EXPERT = {1: "Brainstem", 2: "OpticChiasm", 3: "OpticNrv_L", 4: "OpticNrv_R"}
COLORS = {
    "Brainstem": "#2ca02c",
    "OpticChiasm": "#ff3b30",
    "OpticNrv_L": "#c81e9e",
    "OpticNrv_R": "#c81e9e",
    "Eye_L": "#ffb84d",
    "Eye_R": "#ffb84d",
    "Hippocampus_L": "#8c6bd6",
    "Hippocampus_R": "#8c6bd6",
}


def read(name: str) -> tuple[np.ndarray, Grid]:
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / f"head_{name}.nii.gz"))
    source = np.asarray(image.dataobj).astype(np.int32)
    return source, Grid(source.shape, image.affine)


def labeled(source: np.ndarray) -> dict[str, np.ndarray]:
    """Organs as the label map has them; globes are their hulls, nerves what lies in front of the chiasm."""
    left, right = separate_globes(source == 506)
    chiasm = largest_component(source == 85)
    i, j, _ = np.ogrid[tuple(slice(0, n) for n in source.shape)]
    middle = np.argwhere(chiasm).mean(0)
    nerve = (source == 530) & (j > middle[1])
    return {
        "Brainstem": largest_component(source == 16),
        "OpticChiasm": chiasm,
        "OpticNrv_L": nerve & (i < middle[0]),
        "OpticNrv_R": nerve & (i >= middle[0]),
        "Eye_L": left,
        "Eye_R": right,
    }


def measure() -> None:
    rows = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.parent.mkdir(exist_ok=True)
    for name in HEADS:
        if name in rows:
            continue
        source, grid = read(name)
        after = define_organs(source, grid, default_heads(), clinical_rules(), name=name)
        before = labeled(source)
        rows[name] = {
            "before": {k: float(before[k].sum()) / 1000 for k in ORGANS},
            "after": {k: float(after.organs[k].sum()) / 1000 for k in ORGANS},
            "pieces": {k: [_pieces(before[k]), _pieces(after.organs[k])] for k in ORGANS},
            "length": {s: _length(after, s) for s in "LR"},
            "dens": "dens" in after.landmarks,
        }
        KEPT.write_text(json.dumps(rows))
        print(name, rows[name]["after"], flush=True)


def _pieces(mask: np.ndarray) -> int:
    return int(ndi.label(mask, np.ones((3, 3, 3)))[1])


def _length(found: Clinical, side: str) -> float:
    """Length of the course of a nerve before the chiasm."""
    points = found.courses[side].points
    chiasm = found.organs["OpticChiasm"]
    at = np.clip(np.rint(points).astype(int), 0, np.array(chiasm.shape) - 1)
    outside = points[~chiasm[tuple(at.T)]]
    return float(np.linalg.norm(np.diff(outside, axis=0), axis=1).sum())


def experts() -> dict[str, list[float]]:
    """Volumes of the PDDCA contours, and lengths and calibers of nerves in mm."""
    out: dict[str, list[float]] = {
        name: [] for name in (*EXPERT.values(), "length", "caliber", "apart", "ahead")
    }
    for path in sorted((DATA / "organs").glob("*.nii.gz")):
        image = nib.as_closest_canonical(nib.load(path))
        data, affine = np.asarray(image.dataobj), image.affine
        cubic = abs(np.linalg.det(affine[:3, :3]))
        where = {v: np.argwhere(data == v) @ affine[:3, :3].T + affine[:3, 3] for v in EXPERT}
        for value, name in EXPERT.items():
            out[name].append(len(where[value]) * cubic / 1000)
        ends = []
        for value in (3, 4):
            w = where[value]
            steps = np.arange(w[:, 1].min(), w[:, 1].max(), 3.0)
            slabs = [w[(w[:, 1] >= y) & (w[:, 1] < y + 3)] for y in steps]
            middle = np.array([s.mean(0) for s in slabs if len(s)])
            length = float(np.linalg.norm(np.diff(middle, axis=0), axis=1).sum()) + 3
            out["length"].append(length)
            out["caliber"].append(2 * float(np.sqrt(len(w) * cubic / length / np.pi)))
            ends.append(w[w[:, 1] <= w[:, 1].min() + 2.5].mean(0))
        out["apart"].append(abs(float(ends[0][0] - ends[1][0])))
        out["ahead"].append(float((ends[0][1] + ends[1][1]) / 2 - where[2][:, 1].mean()))
    return out


def page() -> None:
    rows, drawn = json.loads(KEPT.read_text()), experts()
    lines = [
        *HEADER.format(n=len(rows)).splitlines(),
        "",
        "| head | " + " | ".join(ORGANS) + " | lengths, mm | dens |",
    ]
    lines.append("|" + "---|" * (len(ORGANS) + 3))
    for name, row in rows.items():
        cells = [f"{row['before'][o]:.2f} → {row['after'][o]:.2f}" for o in ORGANS]
        lengths = f"{row['length']['L']:.0f}, {row['length']['R']:.0f}"
        lines.append(f"| {name} | " + " | ".join([*cells, lengths, "found" if row["dens"] else "no"]) + " |")
    for kind in ("before", "after"):
        cells = [_range([r[kind][o] for r in rows.values()]) for o in ORGANS]
        lengths = _range([v for r in rows.values() for v in r["length"].values()], 0)
        lines.append(
            f"| all, {kind} | " + " | ".join([*cells, lengths if kind == "after" else "", ""]) + " |"
        )
    cells = [_range(drawn[o]) if o in drawn else "" for o in ORGANS]
    lines.append("| PDDCA | " + " | ".join([*cells, _range(drawn["length"], 0), ""]) + " |")
    whole = {
        kind: sum(r["pieces"][o][at] == 1 for r in rows.values() for o in ("OpticNrv_L", "OpticNrv_R"))
        for at, kind in enumerate(("before", "after"))
    }
    n = 2 * len(rows)
    lines += ["", f"Nerves in one piece: {whole['before']} of {n} before, {whole['after']} of {n} after."]
    lines.append(f"PDDCA: caliber of nerves {_range(drawn['caliber'], 1)} mm; where a nerve ends, both are")
    lines.append(
        f"{_range(drawn['apart'], 1)} mm apart and {_range(drawn['ahead'], 1)} mm in front of the middle"
    )
    lines += ["of the chiasm.", ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines[-20:]))


def _range(values: list[float], digits: int = 2) -> str:
    """Median and range."""
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), float(np.median(values)), max(values)))
    return f"{middle} ({low} to {high})"


HEADER = """\
# Clinical definitions of organs

Written by `python research/clinical.py page` from {n} of 12 label maps. Volumes in cm³: as the label map has
the organ (its largest piece, globes as hulls), then by the definitions in
`src/tumoar/data/clinical.toml`. PDDCA: contours of experts in 16 other patients, median and range.
Hippocampi are as the label maps have them.
"""


def figure() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    source, grid = read("10")
    after = define_organs(source, grid, default_heads(), clinical_rules(), name="10")
    before = labeled(source) | {k: v for k, v in after.organs.items() if k.startswith("Hippocampus")}
    middle = np.argwhere(after.organs["Brainstem"]).mean(0).round().astype(int)
    nerve = np.argwhere(after.organs["OpticNrv_L"] | after.organs["OpticNrv_R"]).mean(0).round().astype(int)
    eye = after.globes["L"].center.round().astype(int)
    peduncle = int(after.landmarks["mammillary bodies"][2])
    gray = np.zeros(source.max() + 1)
    for codes, value in (
        ((515, 516), 0.9),
        ((507, 511), 0.35),
        ((2, 41, 7, 46), 0.75),
        ((3, 42, 8, 47), 0.55),
    ):
        gray[[c for c in codes if c < len(gray)]] = value
    gray[[28, 60, 10, 49]] = 0.65
    gray[24] = 0.15
    views = (
        ("midline", lambda v: v[middle[0] - 2, 40:230, 60:200].T),
        ("peduncles", lambda v: v[60:195, 70:205, peduncle].T),
        ("nerves", lambda v: v[60:195, 100:225, nerve[2] - 3 : nerve[2] + 4].max(-1).T),
        ("left globe", lambda v: v[eye[0], 150:225, 90:160].T),
    )
    fig, axes = plt.subplots(2, 4, figsize=(15, 7.2))
    for row, (kind, organs) in enumerate((("label map", before), ("clinical definition", after.organs))):
        for axis, (title, cut) in zip(axes[row], views):
            axis.imshow(cut(gray[source]), origin="lower", cmap="gray", vmin=0, vmax=1)
            for name, mask in organs.items():
                flat = cut(mask).astype(float)
                if flat.any():
                    axis.contourf(flat, levels=[0.5, 1.5], colors=[COLORS[name]], alpha=0.75)
            axis.set_title(f"{title}, {kind}", fontsize=9)
            axis.axis("off")
    fig.tight_layout()
    FIGURE.parent.mkdir(exist_ok=True)
    fig.savefig(FIGURE, dpi=80)
    print(Path(FIGURE).name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("measure", "page", "figure"))
    {"measure": measure, "page": page, "figure": figure}[parser.parse_args().verb]()


if __name__ == "__main__":
    main()
