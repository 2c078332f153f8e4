"""How often the first placement of the atlas succeeds, and whether it knows when it does not.

Seven patients and five simulated ones, each in several sets of contrasts; every set is placed from random
starts, that is with its header turned by up to 30 degrees and shifted by up to 60 mm. A placement is right
within 3 mm (mean over points around the brain) and 3 degrees of the truth; for patients, of the consensus of
all starts and sets of the same patient. Simulated heads are held out from atlas and surroundings; their truth
is the placement found on the label map itself. Then images that are no head the right way up: all are to be
refused.

Prints, as its last line, one JSON object; the full run writes docs/results/affine.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.assemble import build_case
from tumoar.contrasts import find_contrast
from tumoar.image import Case, Grid, Image, Input, is_valid, transformed
from tumoar.inference.affine import (
    AFFINE,
    RADIUS,
    AffineConfig,
    AffineResult,
    find_placement,
    refine,
    rotation_and_scales,
)
from tumoar.inference.resample import resample_valid
from tumoar.inference.signal import Signal
from tumoar.inference.template import (
    Template,
    at_rest,
    atlas_template,
    default_surroundings,
    fit_affine,
    landmarks,
    make_template,
)
from tumoar.io.store import load_atlas
from tumoar.labels import default_labels
from tumoar.model.atlas import Atlas
from tumoar.simulate import Acquisition, draw_place, simulate
from tumoar.simulate.scanner import over_same_field
from tumoar.train.prepare import default_heads, prepare

PROJECT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
LABELS = default_labels()
SEEDS = {"develop": 1000, "report": 7}
SETS = (("T1", "T1c", "T2", "FLAIR"), ("T1",), ("T1c",), ("T2",), ("FLAIR",), ("CT",))
"""Contrasts placed together; of the first all that there are."""
RIGHT_MM, RIGHT_DEGREES = 3.0, 3.0


@dataclass(frozen=True)
class Subject:
    """Somebody to be placed on; patients have no truth."""

    name: str
    case: Case
    truth: np.ndarray | None = None


# ---- atlas and heads ---------------------------------------------------------------------------------------


def read_head(name: str, cache: Path) -> tuple[np.ndarray, np.ndarray, Grid]:
    """Label map, source codes and grid; preparing takes a while, so its result is kept."""
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / f"head_{name}.nii.gz"))
    source = np.asarray(image.dataobj).astype(np.int16)
    grid = Grid(source.shape, image.affine)
    kept = cache / f"head_{name}.npy"
    if not kept.exists():
        np.save(kept, prepare(source, grid, default_heads(), LABELS, name=name))
    return np.load(kept), source, grid


# ---- subjects ----------------------------------------------------------------------------------------------


def patients(cache: Path) -> Iterator[Subject]:
    files = {"T1": "t1", "T1c": "t1c", "T2": "t2", "FLAIR": "flair"}
    for folder in sorted((DATA / "patients").iterdir()):
        images = {}
        for contrast, stem in files.items():
            image = nib.load(folder / f"{stem}.nii.gz")
            images[contrast] = Image(np.asarray(image.dataobj), Grid(image.shape, image.affine), stem)
        yield Subject(folder.name, kept_case(cache / f"{folder.name}.npz", images))


def kept_case(path: Path, images: dict[str, Image]) -> Case:
    """A case from images; values and grid are kept, since registration takes a while."""
    if not path.exists():
        case = build_case(images)
        np.savez(path, D=case.D, affine=case.grid.affine, stripped=case.skull_stripped)
    with np.load(path) as kept:
        return bare_case(kept["D"], kept["affine"], tuple(images), bool(kept["stripped"]))


def bare_case(D: np.ndarray, affine: np.ndarray, contrasts: tuple[str, ...], stripped: bool) -> Case:
    grid = Grid(D.shape[1:], affine)
    given = tuple(Input(name, "", grid, "RAS", np.eye(4)) for name in contrasts)
    return Case(D, tuple(find_contrast(n) for n in contrasts), grid, contrasts[0], given, stripped)


SCANS = (
    (
        "10",
        {"T1": (2, 2, 2), "T1c": (2, 2, 2), "T2": (2, 2, 3), "FLAIR": (2, 2, 3), "CT": (2, 2, 2)},
        "whole",
    ),
    ("20", {"T1": (2, 2, 6.5), "T1c": (2, 2, 6.5), "T2": (2, 2, 6.5), "FLAIR": (2, 2, 6.5)}, "thick slices"),
    ("10", {"T1": (2, 2, 2), "T1c": (2, 2, 2), "T2": (2, 2, 2), "FLAIR": (2, 2, 2)}, "stripped"),
    (
        "20",
        {"T1": (2, 2, 5), "T1c": (2, 2, 2), "T2": (2, 2, 5), "FLAIR": (2, 2, 5), "CT": (2, 2, 3)},
        "no neck",
    ),
    ("10", {"T1": (2, 2, 2), "T2": (2, 2, 3), "FLAIR": (2, 2, 6), "CT": (2, 2, 2)}, "large tumor"),
)
"""Head, voxel size by contrast, and what is special."""


def simulated(cache: Path, atlas: Atlas) -> Iterator[Subject]:
    """Held-out heads, varied in size and shape, with tumors of other patients, on different scanners."""
    tumors = sorted((DATA / "tumors" / "reference").glob("*.nii.gz"))
    for k, (name, spacings, how) in enumerate(SCANS):
        path = cache / f"simulated_{k}.npz"
        truth_path = cache / f"simulated_{k}_truth.npy"
        rng = np.random.default_rng([2024, k])
        contrasts = tuple(spacings)
        if not path.exists():
            label_map, source, own = varied(*read_head(name, cache), rng)
            if how == "no neck":
                low = np.flatnonzero((label_map > 0).any((0, 1)))[0]
                label_map, source = label_map[:, :, low:], source[:, :, low:]
                own = Grid(label_map.shape, shifted(own.affine, own.world([0, 0, low])))
            tumor = nib.as_closest_canonical(nib.load(tumors[2 if how == "large tumor" else k]))
            shape = np.asarray(tumor.dataobj).astype(np.uint8)[::2, ::2, ::2]
            placed = draw_place(shape, label_map, LABELS, rng)
            scans = [Acquisition(c, s) for c, s in spacings.items()]
            images, truth = simulate(
                label_map, own, placed, scans, LABELS, rng, source=source, skull_stripped=how == "stripped"
            )
            D, affine = at_one_mm(images)
            np.savez(path, D=D, affine=affine, stripped=how == "stripped")
            np.save(truth_path, label_placement(truth.l, own, atlas))
        with np.load(path) as kept:
            case = bare_case(kept["D"], kept["affine"], contrasts, bool(kept["stripped"]))
        yield Subject(f"simulated {k + 1} ({how})", case, np.load(truth_path))


def at_one_mm(images: dict[str, Image]) -> tuple[np.ndarray, np.ndarray]:
    """What a case holds of images whose places are known."""
    onto = over_same_field(next(iter(images.values())).grid, (1.0, 1.0, 1.0))
    D = []
    for name, image in images.items():
        contrast = find_contrast(name)
        values = image.data.astype(np.float32)
        values, valid = resample_valid(values, is_valid(values, contrast), image.grid, onto)
        D.append(np.where(valid, transformed(np.where(valid, values, 1), contrast), np.nan))
    return np.stack(D).astype(np.float32), onto.affine


def shifted(affine: np.ndarray, origin: np.ndarray) -> np.ndarray:
    out = affine.copy()
    out[:3, 3] = origin
    return out


def varied(label_map: np.ndarray, source: np.ndarray, grid: Grid, rng: np.random.Generator):
    """Another head, every second voxel: stretched by a few percent, bent by a few mm; cropped."""
    label_map, source = label_map[::2, ::2, ::2], source[::2, ::2, ::2]
    half = grid.affine.copy()
    half[:3, :3] *= 2
    grid = Grid(label_map.shape, half)
    box = ndi.find_objects((source > 0).astype(np.int8))[0]
    box = tuple(slice(max(b.start - 4, 0), b.stop + 4) for b in box)
    label_map, source = label_map[box], source[box]
    grid = Grid(label_map.shape, shifted(grid.affine, grid.world([b.start for b in box])))
    center = np.array(grid.shape).reshape(3, 1, 1, 1) / 2
    stretch = np.diag(np.exp(rng.normal(0, 0.04, 3))) + rng.normal(0, 0.02, (3, 3))
    coarse = [ndi.gaussian_filter(rng.normal(size=[n // 4 + 2 for n in grid.shape]), 3) for _ in range(3)]
    bend = [ndi.zoom(c, [n / m for n, m in zip(grid.shape, c.shape)], order=1) for c in coarse]
    where = np.tensordot(stretch, np.indices(grid.shape, np.float32) - center, 1) + center
    where = (where + np.stack([1.5 * b / b.std() for b in bend])).astype(np.float32)
    return (*(ndi.map_coordinates(m, where, order=0, mode="constant") for m in (label_map, source)), grid)


def label_placement(label_map: np.ndarray, own: Grid, atlas: Atlas) -> np.ndarray:
    """Atlas to head, found on the labels: they take the place of bins, started from landmarks."""
    pi, grid = at_rest(atlas)
    template = make_template(pi, grid, LABELS, default_surroundings(), skull_stripped=False)
    one_hot = (label_map[..., None] == LABELS.indices).astype(np.float32)
    start = fit_affine(landmarks(one_hot, own, LABELS), landmarks(pi, grid, LABELS))
    where = own.world(np.argwhere(np.ones(label_map.shape, bool)))
    signal = Signal(where, label_map.reshape(-1, 1).copy(), np.ones(label_map.size, bool), 2.0)
    matrix = start
    for level in (0, 1, 2):
        matrix = refine(
            matrix, signal, template, level, AFFINE, AffineConfig(), passes=30, tolerance=0.02
        ).matrix
    return np.linalg.inv(matrix)


# ---- trials ------------------------------------------------------------------------------------------------


def random_motion(center: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    axis, way = rng.normal(size=(2, 3))
    out = np.eye(4)
    turn = rng.uniform(0, 30) * axis / np.linalg.norm(axis)
    out[:3, :3] = Rotation.from_rotvec(turn, degrees=True).as_matrix()
    out[:3, 3] = center - out[:3, :3] @ center + rng.uniform(0, 60) * way / np.linalg.norm(way)
    return out


def moved(case: Case, motion: np.ndarray) -> Case:
    return replace(case, grid=Grid(case.grid.shape, motion @ case.grid.affine))


def subset(case: Case, names: tuple[str, ...]) -> Case:
    at = [[c.name for c in case.contrasts].index(n) for n in names]
    given = tuple(case.inputs[i] for i in at)
    return replace(
        case,
        D=case.D[at],
        contrasts=tuple(case.contrasts[i] for i in at),
        inputs=given,
        reference=given[0].name,
    )


def errors(matrix: np.ndarray, truth: np.ndarray, center: np.ndarray) -> tuple[float, float]:
    """Mean distance in mm of points around the brain, and angle in degrees, between two placements."""
    points = center + RADIUS * np.vstack([np.zeros((1, 3)), np.eye(3), -np.eye(3)])
    ends = [points @ m[:3, :3].T + m[:3, 3] for m in (matrix, truth)]
    turn = rotation_and_scales(matrix)[0] @ rotation_and_scales(truth)[0].T
    degrees = np.degrees(Rotation.from_matrix(turn).magnitude())
    return float(np.linalg.norm(ends[0] - ends[1], axis=1).mean()), float(degrees)


def consensus(matrices: list[np.ndarray], center: np.ndarray) -> np.ndarray:
    """The placement that is nearest to all others."""
    apart = [[errors(a, b, center)[0] for b in matrices] for a in matrices]
    return matrices[int(np.argmin(np.median(apart, axis=1)))]


@dataclass(frozen=True)
class Trial:
    """One start of one set of contrasts."""

    subject: str
    contrasts: str
    result: AffineResult
    matrix: np.ndarray  # with the random motion undone
    seconds: float


def trials(
    subject: Subject, templates: dict[bool, Template], starts: tuple[int, int], seed: int
) -> list[Trial]:
    out = []
    center = subject.case.grid.world(np.array(subject.case.grid.shape) / 2)
    known = tuple(c.name for c in subject.case.contrasts)
    for k, wanted in enumerate(SETS):
        names = tuple(n for n in wanted if n in known)
        if not names:
            continue
        case = subset(subject.case, names)
        rng = np.random.default_rng([seed, k, *subject.name.encode()])
        for _ in range(starts[min(k, 1)]):
            motion = random_motion(center, rng)
            start = time.process_time()
            result = find_placement(moved(case, motion), templates[case.skull_stripped])
            seconds = time.process_time() - start
            matrix = np.linalg.inv(motion) @ result.matrix
            out.append(Trial(subject.name, "+".join(names), result, matrix, seconds))
    return out


def impostors(subjects: list[Subject]) -> Iterator[tuple[str, Case]]:
    """Heads turned in the image, halved, shrunk or blown up, and images of no head."""
    for subject in subjects:
        case = subset(subject.case, ("T1", "FLAIR"))
        for name, axes in (
            ("upside down, facing back", (2, 3)),
            ("upside down", (1, 3)),
            ("facing back", (1, 2)),
        ):
            yield f"{subject.name}: {name}", replace(case, D=np.flip(case.D, axes))
        half = np.array(case.grid.shape) // 2
        yield (
            f"{subject.name}: upper half",
            replace(
                case,
                D=case.D[..., half[2] :],
                grid=Grid(
                    (*case.grid.shape[:2], case.grid.shape[2] - half[2]),
                    shifted(case.grid.affine, case.grid.world([0, 0, half[2]])),
                ),
            ),
        )
        rng = np.random.default_rng(3)
        scrambled = case.D.copy()
        flat = scrambled.reshape(len(scrambled), -1)
        told = np.isfinite(flat).all(0)
        flat[:, told] = flat[:, rng.permutation(np.flatnonzero(told))]
        yield f"{subject.name}: scrambled", replace(case, D=scrambled)


# ---- report ------------------------------------------------------------------------------------------------


def summarize(subject: Subject, done: list[Trial], templates: dict[bool, Template]) -> list[dict]:
    center = templates[subject.case.skull_stripped].center
    truth = subject.truth if subject.truth is not None else consensus([t.matrix for t in done], center)
    rows = []
    for contrasts in dict.fromkeys(t.contrasts for t in done):
        own = [t for t in done if t.contrasts == contrasts]
        off = [errors(t.matrix, truth, center) for t in own]
        right = [mm <= RIGHT_MM and degrees <= RIGHT_DEGREES for mm, degrees in off]
        flagged = [bool(t.result.failures) for t in own]
        rows.append(
            {
                "subject": subject.name,
                "contrasts": contrasts,
                "starts": len(own),
                "right": int(np.sum(right)),
                "median mm": round(float(np.median([mm for mm, _ in off])), 2),
                "worst mm": round(max(mm for mm, _ in off), 2),
                "worst degrees": round(max(d for _, d in off), 2),
                "missed unflagged": int(np.sum([not r and not f for r, f in zip(right, flagged)])),
                "right but flagged": int(np.sum([r and f for r, f in zip(right, flagged)])),
                "seconds": round(float(np.median([t.seconds for t in own])), 1),
            }
        )
    return rows


def table(rows: list[dict]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(r[k]) for k in head) + " |" for r in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one patient, three starts")
    parser.add_argument(
        "--starts", type=int, nargs=2, default=(20, 5), help="of all contrasts, of each alone"
    )
    parser.add_argument("--seed", choices=SEEDS, default="report")
    parser.add_argument("--only", default="", help="part of a subject's name")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tumoar-experiments")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)

    with as_file(files("tumoar").joinpath("data/atlas.npz")) as path:
        atlas = load_atlas(path)
    templates = {s: atlas_template(atlas, default_surroundings(), skull_stripped=s) for s in (False, True)}
    held_out = {Path(name).name[5:7] for name in atlas.provenance["held_out"]}
    everyone = (s for source in (patients(options.cache), simulated(options.cache, atlas)) for s in source)
    assert {name for name, *_ in SCANS} <= held_out
    rows, refused, count, accepted = [], 0, 0, []
    starts = (3, 1) if options.quick else tuple(options.starts)
    for subject in everyone:
        if options.only not in subject.name:
            continue
        rows += summarize(subject, trials(subject, templates, starts, SEEDS[options.seed]), templates)
        for name, case in impostors([subject]):
            count += 1
            if find_placement(case, templates[case.skull_stripped]).failures:
                refused += 1
            else:
                accepted.append(name)
        print(table(rows[-5:]), flush=True)
        if options.quick:
            break
    figures = {
        "trials": sum(r["starts"] for r in rows),
        "right": sum(r["right"] for r in rows),
        "missed unflagged": sum(r["missed unflagged"] for r in rows),
        "right but flagged": sum(r["right but flagged"] for r in rows),
        "impostors": count,
        "impostors refused": refused,
        "impostors accepted": accepted,
        "median seconds": float(np.median([r["seconds"] for r in rows])),
    }
    if not options.quick and not options.only:
        parts = ["# Placement of the atlas", __doc__, table(rows), f"`{json.dumps(figures)}`"]
        (PROJECT / "docs" / "results").mkdir(exist_ok=True)
        (PROJECT / "docs" / "results" / "affine.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
