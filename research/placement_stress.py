"""Whether a head made harder is still placed, and whether what is no head is still refused.

python research/placement_stress.py NAME [--only PART] [--pictures PART] [--against NAME]

Real whole heads and simulated ones are hardened (`hard_heads.py`): neck added or cut, fat brightened, coils
faded, air cleared or noisy, heads tilted, one contrast at a time; skull-stripped patients are left as they
are. The reference of a
real head is the placement of the plain head with all its contrasts (looked at in three planes), moved as the
hardening moves the head; that of a simulated head is found on its labels. A placement is right within 4 mm
(median over the nodes of the atlas in the brain). Cases and results are kept in build/placement_stress, one
line of JSON for each trial under NAME, so that an interrupted run goes on where it was.

Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from affine import label_placement
from hard_heads import HARDENINGS, Hard, impostors, phantoms
from head_cases import DATA, LABELS, PROJECT, around_head, at_one_mm, bare_case, read_head
from scipy import ndimage as ndi

from tumoar.geometry.image import Case, Grid, Image
from tumoar.io.models import default_model
from tumoar.placement.affine import AffineResult, find_placement
from tumoar.placement.template import Template, atlas_template, default_surroundings
from tumoar.preprocess.case import build_case
from tumoar.simulate import Acquisition, simulate

KEPT = PROJECT / "build" / "placement_stress"
RIGHT = 4.0
"""mm, median over the brain's nodes."""
GOOD = {"right", "refused"}
FILES = {"T1": "t1", "T1c": "t1c", "T2": "t2", "FLAIR": "flair", "CT": "ct"}
MR = ("T1", "T1c", "T2", "FLAIR")
WHOLE = {
    "CPTAC": ("heads-real/CPTAC-C3L-00631", ("T1c",)),
    "Colin27": ("heads-real/Colin27", ("T1",)),
    "HN-CHUS": ("heads-real/HN-CHUS-005", ("CT",)),
    "TCGA": ("patients/TCGA-02-0054", MR),
}
SIMULATED = {"head 10": "10", "head 20": "20"}
"""Neither trained the atlas nor the surroundings; only the first has a neck."""
GEOMETRY = [
    n for n in HARDENINGS if n.split()[0] in ("plain", "neck", "nod", "lean", "turn") and "," not in n
]
HARDEST = [n for n in HARDENINGS if "," in n]
ALONE = ["plain", "neck, fat, coil below, nod +20", "neck, fat, coil below, nod -20"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A case, its reference placement (4x4), and which hardenings of which contrasts are tried."""

    name: str
    case: Case
    reference: np.ndarray
    trials: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    has_impostors: bool = False


# ---- subjects ----------------------------------------------------------------------------------------------


def read_images(folder: Path, contrasts: tuple[str, ...]) -> dict[str, Image]:
    images = {}
    for contrast in contrasts:
        image = nib.load(folder / f"{FILES[contrast]}.nii.gz")
        images[contrast] = Image(np.asarray(image.dataobj), Grid(image.shape, image.affine), FILES[contrast])
    return images


def kept_case(name: str, make) -> tuple[Case, np.ndarray | None]:
    """A case, and its truth if it has one; made once."""
    path = KEPT / f"{name}.npz"
    if not path.exists():
        case, truth = make()
        names = np.array([c.name for c in case.contrasts])
        known = {} if truth is None else {"truth": truth}
        np.savez(path, D=case.D, affine=case.grid.affine, names=names, stripped=case.skull_stripped, **known)
    with np.load(path) as kept:
        case = bare_case(kept["D"], kept["affine"], tuple(kept["names"].tolist()), bool(kept["stripped"]))
        return case, kept.get("truth")


def simulated(name: str) -> tuple[Case, np.ndarray]:
    label_map, source, grid = around_head(*read_head(name, KEPT), 10.0, 220.0)
    scans = [Acquisition(c, (1.0, 1.0, 1.0)) for c in (*MR, "CT")]
    rng = np.random.default_rng([31, int(name)])
    images, truth = simulate(label_map, grid, None, scans, LABELS, rng, source=source)
    D, affine = at_one_mm(images)
    half = grid.affine.copy()
    half[:3, :3] *= 2
    coarse = truth.l[::2, ::2, ::2]
    placement = label_placement(np.ascontiguousarray(coarse), Grid(coarse.shape, half), default_model().atlas)
    return bare_case(D, affine, (*MR, "CT"), False), placement


def subjects(templates: dict[bool, Template]) -> Iterator[Subject]:
    def referenced(name: str, case: Case, names: tuple[str, ...], *rest) -> Subject:
        path = KEPT / f"{name} reference.json"
        if not path.exists():
            found = find_placement(subset(case, names), templates[case.skull_stripped])
            path.write_text(json.dumps(found.matrix.tolist()), encoding="utf-8")
        return Subject(name, case, np.array(json.loads(path.read_text(encoding="utf-8"))), *rest)

    everything = tuple(HARDENINGS)
    for name, (folder, contrasts) in WHOLE.items():
        case, _ = kept_case(name, lambda f=folder, c=contrasts: (build_case(read_images(DATA / f, c)), None))
        tried = {
            "HN-CHUS": (((contrasts), tuple(GEOMETRY)),),
            "TCGA": ((MR, (*GEOMETRY, *HARDEST)), *(((c,), tuple(ALONE)) for c in MR)),
        }.get(name, ((contrasts, everything),))
        yield referenced(name, case, contrasts, tried, True)
    for name, number in SIMULATED.items():
        case, truth = kept_case(name, lambda n=number: simulated(n))
        tried = (
            (("T1c",), everything),
            (MR, tuple(ALONE)),
            *(((c,), tuple(ALONE)) for c in ("T1", "T2", "FLAIR", "CT")),
        )
        yield Subject(name, case, truth, tried, name == "head 10")
    for folder in sorted([*(DATA / "patients").glob("BraTS*"), *(DATA / "patients-automatic").iterdir()]):
        if not folder.is_dir():
            continue
        name = f"stripped {folder.name}"
        case, _ = kept_case(name, lambda f=folder: (build_case(read_images(f, MR), register=False), None))
        yield referenced(name, case, MR, ((MR, ("plain",)), (("T1c",), ("plain",))), False)


def subset(case: Case, names: tuple[str, ...]) -> Case:
    known = [c.name for c in case.contrasts]
    return bare_case(case.D[[known.index(n) for n in names]], case.grid.affine, names, case.skull_stripped)


# ---- trials ------------------------------------------------------------------------------------------------


def trials(subject: Subject, template: Template) -> Iterator[tuple[str, callable]]:
    """A name and how to make the hardened case, or an impostor, with its reference or none."""
    for contrasts, hardenings in subject.trials:
        case = subset(subject.case, contrasts)
        for how in hardenings:
            name = f"{subject.name} | {'+'.join(contrasts)} | {how}"
            yield name, lambda c=case, h=how: HARDENINGS[h](c, brain_of(c, subject.reference, template))
    if subject.has_impostors:
        case = subset(subject.case, subject.trials[0][0])
        for kind, make in impostors(case, brain_of(case, subject.reference, template)).items():
            yield f"{subject.name} | {'+'.join(subject.trials[0][0])} | not: {kind}", make


def brain_of(case: Case, reference: np.ndarray, template: Template) -> np.ndarray:
    """(X, Y, Z) where the reference puts the brain."""
    m = template.grid.inverse @ np.linalg.inv(reference) @ case.grid.affine
    brain = template.levels[-1][..., template.is_brain].sum(-1)
    return ndi.affine_transform(brain, m[:3, :3], m[:3, 3], case.grid.shape, order=1) > 0.5


def nodes_in_brain() -> np.ndarray:
    atlas = default_model().atlas
    return atlas.nodes[atlas.alpha[:, atlas.labels.in_brain].sum(1) > 0.5]


def distance(a: np.ndarray, b: np.ndarray, points: np.ndarray) -> float:
    """Median distance in mm of points under two placements."""
    ends = [points @ m[:3, :3].T + m[:3, 3] for m in (a, b)]
    return float(np.median(np.linalg.norm(ends[0] - ends[1], axis=1)))


def run(
    subject: Subject | None, name: str, made: Hard | Case, templates, points: np.ndarray
) -> tuple[dict, AffineResult]:
    case, motion = (made.case, made.motion) if isinstance(made, Hard) else (made, None)
    start = time.process_time()
    found = find_placement(case, templates[case.skull_stripped])
    row = {"trial": name, "seconds": round(time.process_time() - start, 2), "failures": list(found.failures)}
    if motion is not None and subject is not None:
        row["mm"] = round(distance(found.matrix, motion @ subject.reference, points), 2)
    row["quality"] = {k: round(float(v), 4) for k, v in found.quality.items()}
    row["matrix"] = found.matrix.tolist()
    return row, found


def draw(path: Path, case: Case, matrix: np.ndarray, template: Template, title: str) -> None:
    """Outlines of brain and eye sockets over three planes through the placed brain's center."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    m = template.grid.inverse @ np.linalg.inv(matrix) @ case.grid.affine
    levels = template.levels[-1]
    brain, other = (
        ndi.affine_transform(levels[..., which].sum(-1), m[:3, :3], m[:3, 3], case.grid.shape, order=1)
        for which in (template.is_brain, template.is_atlas & ~template.is_brain)
    )
    at = case.grid.index(matrix[:3, :3] @ template.center + matrix[:3, 3])
    at = np.clip(np.round(at), 0, np.array(case.grid.shape) - 1).astype(int)
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.4))
    image = case.D[0]
    image = np.exp(image - np.nanmax(image)) if case.contrasts[0].is_mr else image
    image = np.nan_to_num(image, nan=float(np.nanmin(image)))
    limits = np.quantile(image, [0.02, 0.985])
    for axis, ax in enumerate(axes):
        ax.imshow(image.take(at[axis], axis).T, origin="lower", cmap="gray", vmin=limits[0], vmax=limits[1])
        for volume, color in ((brain, "red"), (other, "cyan")):
            plane = volume.max(axis) if color == "cyan" else volume.take(at[axis], axis)
            if plane.max() > 0.3:
                ax.contour(plane.T, [0.5 if color == "red" else 0.3], colors=color, linewidths=1)
        ax.axis("off")
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=60)
    plt.close(figure)


# ---- report ------------------------------------------------------------------------------------------------


def verdict(row: dict) -> str:
    accepted = not row["failures"]
    if "| not: " in row["trial"]:
        return "wrongly accepted" if accepted else "refused"
    if row["mm"] <= RIGHT:
        return "right" if accepted else "wrongly refused"
    return "misplaced" if accepted else "lost"


def read_rows(name: str) -> dict[str, dict]:
    path = KEPT / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["trial"]: row for row in map(json.loads, lines)}


def table(rows: dict[str, dict], before: dict[str, dict]) -> str:
    """By hardening: how many trials were and are right, and the median and largest distance now."""
    out = [
        "| hardening | trials | right before | right now | median mm | most mm |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[str]] = {}
    for name in rows:
        subject, _, how = name.split(" | ")
        group = "plain, skull-stripped" if subject.startswith("stripped") else how
        groups.setdefault("impostors and phantoms" if how.startswith("not: ") else group, []).append(name)
    for group, names in groups.items():
        known = [n for n in names if n in before]
        was, now = (sum(verdict(r[n]) in GOOD for n in known) for r in (before, rows))
        mm = [rows[n]["mm"] for n in known if "mm" in rows[n]] or [np.nan]
        out.append(f"| {group} | {len(known)} | {was} | {now} | {np.median(mm):.1f} | {max(mm):.1f} |")
    return "\n".join(out)


def failed(rows: dict[str, dict], before: dict[str, dict]) -> str:
    """Every trial that was or is not right."""
    out = ["| trial | before | mm | now | mm |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        old = before.get(name)
        if old and {verdict(old), verdict(row)} - GOOD:
            cells = (verdict(old), old.get("mm", ""), verdict(row), row.get("mm", ""))
            out.append(f"| {name.replace(' | ', ', ')} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(out)


def left_out(rows: dict[str, dict]) -> str:
    """Limits on `local anatomy` chosen without a subject, halfway in logs between right and wrong, and it."""

    def of(name: str) -> str:
        return name.split(" | ")[0]

    right = {n: r["quality"]["local anatomy"] for n, r in rows.items() if r.get("mm", np.inf) <= RIGHT}
    wrong = {
        n: r["quality"].get("local anatomy", 0) for n, r in rows.items() if "scrambled" in n or "phantom" in n
    }
    out = ["| left out | limit | lowest right | highest wrong |", "|---|---|---|---|"]
    for subject in dict.fromkeys(of(n) for n in rows):
        low = min((v for n, v in right.items() if of(n) != subject), default=np.nan)
        high = max([v for n, v in wrong.items() if of(n) != subject], default=np.nan)
        own = (
            [v for n, v in right.items() if of(n) == subject],
            [v for n, v in wrong.items() if of(n) == subject],
        )
        cells = (f"{min(own[0]):.3f}" if own[0] else "", f"{max(own[1]):.4f}" if own[1] else "")
        out.append(f"| {subject} | {np.sqrt(low * max(high, 1e-4)):.3f} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def figures(rows: dict[str, dict]) -> dict:
    names = [verdict(r) for r in rows.values()]
    kinds = ("right", "wrongly refused", "lost", "misplaced", "refused", "wrongly accepted")
    seconds = [r["seconds"] for r in rows.values()]
    out = {kind: names.count(kind) for kind in kinds}
    return {**out, "median seconds": float(np.median(seconds)), "most seconds": max(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the code that is tried")
    parser.add_argument("--only", default="", help="parts of names of trials, all of them, between commas")
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--again", action="store_true", help="also what was done before")
    parser.add_argument("--against", default="before")
    parser.add_argument("--failed", action="store_true", help="only what was not right in --against")
    parser.add_argument("--quick", action="store_true", help="one trial")
    options = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    atlas = default_model().atlas
    templates = {s: atlas_template(atlas, default_surroundings(), skull_stripped=s) for s in (False, True)}
    points, done, before = nodes_in_brain(), read_rows(options.name), read_rows(options.against)
    others = ((None, f"phantom | {c.contrasts[0].name} | not: {k}", lambda c=c: c) for k, c in phantoms())
    everything = (
        (s, name, make)
        for s in subjects(templates)
        for name, make in trials(s, templates[s.case.skull_stripped])
    )
    for subject, name, make in itertools.chain(everything, others):
        if not all(part in name for part in options.only.split(",")) or (name in done and not options.again):
            continue
        if options.failed and (name not in before or verdict(before[name]) in GOOD):
            continue
        made = make()
        row, found = run(subject, name, made, templates, points)
        done[name] = row
        with (KEPT / f"{options.name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        mm = row.get("mm", "")
        print(
            f"{verdict(row):16} {mm!s:>6} {row['seconds']:5} {name}  {'; '.join(row['failures'])}", flush=True
        )
        if options.pictures:
            case = made.case if isinstance(made, Hard) else made
            path = KEPT / f"{options.name} {name.replace(' | ', ' ')}.png"
            draw(path, case, found.matrix, templates[case.skull_stripped], f"{name}: {verdict(row)} {mm}")
        if options.quick:
            break
    shared = {n: r for n, r in before.items() if n in done}
    parts = ["# Placement of heads made harder", __doc__.split("\n\n", 2)[2].rsplit("\n\n", 1)[0]]
    parts += [table(done, shared), failed(done, shared), left_out(done)] if not options.quick else []
    for name, rows in (("before", shared), ("now", done)):
        parts.append(f"{name}: `{json.dumps(figures(rows))}`" if rows else "")
    (KEPT / f"{options.name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(json.dumps(figures(done)))


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    main()
