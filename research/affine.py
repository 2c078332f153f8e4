"""How often the first placement of the atlas succeeds, and whether it knows when it does not.

Seven patients and five simulated ones, with all MR contrasts together (`--starts` can ask for every
contrast alone as well), are placed from random starts, that is with the header turned by up to 30 degrees
and shifted by up to 60 mm. A placement is right within 3 mm (mean over points around the brain) and 3
degrees of the truth; for patients, who have none, of the consensus of all their starts: there the figures
show how far starts agree, not how right they are. Simulated patients are the two heads that trained neither
atlas nor surroundings, stretched and bent five ways; their truth is the placement found on the label map
itself. How the last refinement is done was decided on these five, from other starts. Then images that are
no head the right way up: all are to be refused. Every finished trial is kept under a key of the code and
data that made it, so that an interrupted run goes on where it was.

Prints, as its last line, one JSON object; the full run writes research/results/affine.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
from head_cases import DATA, LABELS, PROJECT, at_one_mm, bare_case, digest, read_head, shifted
from scipy import ndimage as ndi
from scipy.spatial.transform import Rotation

from tumoar.geometry.image import Case, Grid, Image
from tumoar.io.store import load_atlas
from tumoar.model.atlas import Atlas
from tumoar.placement.affine import (
    AFFINE,
    RADIUS,
    AffineConfig,
    find_placement,
    refine,
    rotation_and_scales,
)
from tumoar.placement.pyramid import Signal
from tumoar.placement.template import (
    Template,
    at_rest,
    atlas_template,
    default_surroundings,
    fit_landmarks,
    landmarks,
    make_template,
)
from tumoar.preprocess.case import build_case
from tumoar.simulate import Acquisition, draw_place, simulate

DECIDES = (
    *(f"inference/{name}.py" for name in ("affine", "signal", "template")),
    "numerics/histogram.py",
    "data/atlas.npz",
    "data/surroundings.npz",
)
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
        path = cache / f"simulated_{k}_{digest(__file__, DECIDES)}.npz"
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
            placement = label_placement(truth.l, own, atlas)
            np.savez(path, D=D, affine=affine, stripped=how == "stripped", truth=placement)
        with np.load(path) as kept:
            case = bare_case(kept["D"], kept["affine"], contrasts, bool(kept["stripped"]))
            yield Subject(f"simulated {k + 1} ({how})", case, kept["truth"])


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
    start = fit_landmarks(landmarks(one_hot, own, LABELS), landmarks(pi, grid, LABELS))
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
    known = [c.name for c in case.contrasts]
    D = case.D[[known.index(name) for name in names]]
    return bare_case(D, case.grid.affine, names, case.skull_stripped)


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


class Trial(NamedTuple):
    """One start of one set of contrasts; `matrix` with the random motion undone."""

    contrasts: str
    matrix: np.ndarray
    failures: list[str]
    seconds: float


def trials(
    subject: Subject, templates: dict[bool, Template], starts: tuple[int, int], seed: int, kept: Path
) -> list[Trial]:
    out = []
    center = subject.case.grid.world(np.array(subject.case.grid.shape) / 2)
    known = tuple(c.name for c in subject.case.contrasts)
    for k, wanted in enumerate(SETS):
        names = tuple(n for n in wanted if n in known)
        if not names:
            continue
        case = subset(subject.case, names)
        for number in range(starts[min(k, 1)]):
            rng = np.random.default_rng([seed, k, number, *subject.name.encode()])
            motion = random_motion(center, rng)
            found = placed(
                moved(case, motion), templates, kept / f"{subject.name} {'+'.join(names)} {seed} {number}"
            )
            matrix = np.linalg.inv(motion) @ found["matrix"]
            out.append(Trial("+".join(names), matrix, found["failures"], found["seconds"]))
    return out


def placed(case: Case, templates: dict[bool, Template], path: Path) -> dict:
    """What placement finds, kept in a file."""
    path = path.with_name(path.name + ".json")
    if not path.exists():
        start = time.process_time()
        result = find_placement(case, templates[case.skull_stripped])
        seconds = time.process_time() - start
        figures = {
            "matrix": result.matrix.tolist(),
            "failures": result.failures,
            "quality": {name: float(value) for name, value in result.quality.items()},
            "seconds": seconds,
        }
        path.write_text(json.dumps(figures), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def impostors(subject: Subject) -> Iterator[tuple[str, Case]]:
    """The head turned in the image, halved, and its voxels scrambled."""
    case = subset(subject.case, ("T1", "FLAIR"))
    for name, axes in (
        ("upside down, facing back", (2, 3)),
        ("upside down", (1, 3)),
        ("facing back", (1, 2)),
    ):
        yield f"{subject.name}, {name}", replace(case, D=np.flip(case.D, axes))
    half = case.grid.shape[2] // 2
    corner = shifted(case.grid.affine, case.grid.world([0, 0, half]))
    upper = case.D[..., half:]
    yield f"{subject.name}, upper half", replace(case, D=upper, grid=Grid(upper.shape[1:], corner))
    flat = case.D.reshape(len(case.D), -1).copy()
    told = np.flatnonzero(np.isfinite(flat).all(0))
    flat[:, told] = flat[:, np.random.default_rng(3).permutation(told)]
    yield f"{subject.name}, scrambled", replace(case, D=flat.reshape(case.D.shape))


# ---- report ------------------------------------------------------------------------------------------------


def summarize(subject: Subject, done: list[Trial], templates: dict[bool, Template]) -> list[dict]:
    center = templates[subject.case.skull_stripped].center
    truth = subject.truth if subject.truth is not None else consensus([t.matrix for t in done], center)
    rows = []
    for contrasts in dict.fromkeys(t.contrasts for t in done):
        own = [t for t in done if t.contrasts == contrasts]
        off = [errors(t.matrix, truth, center) for t in own]
        right = [mm <= RIGHT_MM and degrees <= RIGHT_DEGREES for mm, degrees in off]
        flagged = [bool(t.failures) for t in own]
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
        "--starts", type=int, nargs=2, default=(20, 0), help="of all contrasts, of each alone"
    )
    parser.add_argument("--seed", choices=SEEDS, default="report")
    parser.add_argument("--only", default="", help="part of a subject's name")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tumoar-experiments")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)

    with as_file(files("tumoar").joinpath("data/atlas.npz")) as path:
        atlas = load_atlas(path)
    kept = options.cache / f"affine_{digest(__file__, DECIDES)}"
    kept.mkdir(exist_ok=True)
    templates = {s: atlas_template(atlas, default_surroundings(), skull_stripped=s) for s in (False, True)}
    held_out = {Path(name).name[5:7] for name in atlas.provenance["held_out"]}
    assert {name for name, *_ in SCANS} <= held_out
    rows, refused, accepted = [], 0, []
    starts, seed = (3, 1) if options.quick else tuple(options.starts), SEEDS[options.seed]
    for subject in itertools.chain(patients(options.cache), simulated(options.cache, atlas)):
        if options.only not in subject.name:
            continue
        new = summarize(subject, trials(subject, templates, starts, seed, kept), templates)
        for name, case in impostors(subject):
            if placed(case, templates, kept / name)["failures"]:
                refused += 1
            else:
                accepted.append(name)
        print(table(new), flush=True)
        rows += new
        if options.quick:
            break
    figures = {
        "trials": sum(r["starts"] for r in rows),
        "right": sum(r["right"] for r in rows),
        "missed unflagged": sum(r["missed unflagged"] for r in rows),
        "right but flagged": sum(r["right but flagged"] for r in rows),
        "impostors": refused + len(accepted),
        "impostors refused": refused,
        "impostors accepted": accepted,
        "median seconds": float(np.median([r["seconds"] for r in rows])),
    }
    if not options.quick and not options.only:
        parts = [
            "# Placement of the atlas",
            __doc__.rsplit("\n\n", 1)[0],
            table(rows),
            f"`{json.dumps(figures)}`",
        ]
        (PROJECT / "research" / "results").mkdir(exist_ok=True)
        (PROJECT / "research" / "results" / "affine.md").write_text(
            "\n\n".join(parts) + "\n", encoding="utf-8"
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
