"""Cavity, residual tumor and GTV of simulated patients after surgery, with the class and without it.

Tumors are placed in heads that did not train the atlas, removed in the ways of `tumoar.simulate.surgery`, and
segmented from T1, T1c, T2 and FLAIR. Patients before surgery show what the class does without a cavity.
Shapes are drawn by `draw_blob`, not by the shape priors. Finished patients and fits are kept in TUMOAR_CACHE.

python research/cavity.py [--quick | --report | --only HEAD,WAY,SEED,POSTOP,SETTINGS … | --draw … ]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from head_cases import LABELS, PROJECT, around_head, at_one_mm, bare_case, digest, read_head

from tumoar.app.pipeline import segment
from tumoar.io.models import default_model
from tumoar.result.cavity import review_cavity
from tumoar.result.scores import dice
from tumoar.result.segmentation import Segmentation
from tumoar.simulate import Acquisition, Surgery, Truth, draw_blob, draw_place, simulate
from tumoar.simulate.surgery import WAYS
from tumoar.vocabulary.config import FAST, Config
from tumoar.vocabulary.labels import add_cavity

mpl.use("Agg")
import matplotlib.pyplot as plt

CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
HELD_OUT = ("10", "20")
KEPT = Path(os.environ.get("TUMOAR_CACHE", "/tmp")) / "tumoar_cavity"
RESULTS = PROJECT / "research" / "results" / "cavity.md"
FIGURES = PROJECT / "research" / "figures"
EXTRAS = {"gross": {"wall": True}, "partial": {}, "surface": {"air": True}, "collapsed": {}, "blood": {}}
OPENED = add_cavity(LABELS)
ORGANS = ("brainstem", "left hippocampus", "right hippocampus", "optic chiasm")
SETTINGS = {"fast": FAST, "default": Config()}
SHORT = FAST.model_copy(update={"gibbs": FAST.gibbs.model_copy(update={"burn_in": 15, "samples": 10})})
FITTED_BY = ("model/*.py", "inference/gem.py", "inference/initialise.py", "data/c*.toml", "data/*.npz")


class Patient(NamedTuple):
    """One segmentation of one simulated patient."""

    head: str
    way: str
    seed: int = 1
    postop: bool = True
    settings: str = "fast"

    @property
    def name(self) -> str:
        """Name of its files."""
        return "_".join(map(str, (*self[:3], int(self.postop), self.settings)))


class Fits:
    """Keeps placement and fit of a patient, which do not depend on the sweeps; no other checkpoints."""

    def __init__(self, job: Patient):
        made_by = digest(str(PROJECT / "research" / "head_cases.py"), FITTED_BY)
        self.stem = f"{job.head}_{job.way}_{job.seed}_{int(job.postop)}_{made_by}"

    def _path(self, name: str) -> Path:
        return KEPT / f"{self.stem}_{name}.npz"

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """Placement or fit, if it is kept."""
        path = self._path(name)
        return dict(np.load(path)) if name in ("place", "fit") and path.exists() else None

    def save(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Keep placement or fit."""
        if name in ("place", "fit"):
            np.savez(self._path(name), **arrays)


def make_patient(head: str, way: str, seed: int) -> tuple[dict, Truth]:
    """Images and truth of a patient, before surgery if `way` is "before"; skull-stripped."""
    KEPT.mkdir(exist_ok=True, parents=True)
    label_map, source, grid = around_head(*read_head(head, KEPT), margin=5, tallest=190)
    rng_tumor, rng_scan = np.random.default_rng([int(head), seed]).spawn(2)
    tumor = draw_place(
        draw_blob(rng_tumor, core_ml=float(rng_tumor.uniform(15, 40))), label_map, LABELS, rng_tumor
    )
    surgery = None if way == "before" else Surgery(way, **EXTRAS[way])
    scans = [Acquisition(name) for name in CONTRASTS]
    return simulate(
        label_map,
        grid,
        tumor,
        scans,
        OPENED,
        rng_scan,
        source=source,
        push=3.0,
        skull_stripped=True,
        surgery=surgery,
    )


def crop(D: np.ndarray, affine: np.ndarray, masks: list[np.ndarray]) -> tuple:
    """The box around what is left of the head."""
    seen = np.isfinite(D).all(0)
    box = []
    for axis in range(3):
        at = np.flatnonzero(seen.any(tuple(a for a in range(3) if a != axis)))
        box.append(slice(max(int(at[0]) - 4, 0), int(at[-1]) + 5))
    moved = affine.copy()
    moved[:3, 3] = affine[:3, :3] @ [b.start for b in box] + affine[:3, 3]
    return np.ascontiguousarray(D[(slice(None), *box)]), moved, [m[tuple(box)] for m in masks]


def run(job: Patient, config: Config) -> dict:
    """Scores of one patient."""
    images, truth = make_patient(job.head, job.way, job.seed)
    D, affine = at_one_mm(images)
    true = {
        "cavity": truth.cavity,
        "residual": truth.y,
        "GTV": truth.cavity | truth.y,
        "whole": truth.z | truth.cavity,
        **{name: truth.l == LABELS.indices[LABELS.l(name)] for name in ORGANS},
    }
    D, affine, masks = crop(D, affine, list(true.values()))
    case = bare_case(D, affine, CONTRASTS, stripped=True)
    begun = time.process_time()
    config = config.model_copy(update={"postop": job.postop})
    found = segment(case, default_model(), config, seed=0, keeper=Fits(job))
    ours, table = found.votes, found.table
    our_cavity = np.zeros(ours.l.shape, bool) if table.cavity is None else ours.l == table.cavity
    our_core = (ours.y == 1) & ~our_cavity
    outlined = {
        "cavity": our_cavity,
        "residual": our_core,
        "GTV": our_cavity | our_core,
        "whole": ours.z == 1,
        **{name: ours.l == table.l(name) for name in ORGANS},
    }
    row = job._asdict() | {"seconds": round(time.process_time() - begun)}
    pairs = {name: (outlined[name], mask) for name, mask in zip(true, masks)}
    for name, (a, b) in pairs.items():
        row[name] = round(float(dice(a, b)), 3) if a.any() or b.any() else None
        row[f"{name}_cm3"] = [round(float(m.sum()) / 1000, 2) for m in (a, b)]
    row["organs"] = round(float(np.mean([row[name] for name in ORGANS])), 3)
    row["closed_cm3"] = round(float(found.closed.sum()) / 1000, 2)
    row["notes"] = [str(note) for note in review_cavity(found)]
    keep(job, found, pairs)
    return row


def keep(job: Patient, found: Segmentation, pairs: dict) -> None:
    """Keep what is needed to look at a result."""
    masks = {f"{k}_{i}": np.packbits(m) for k, v in pairs.items() for i, m in enumerate(v)}
    np.savez_compressed(
        KEPT / f"{job.name}.npz",
        shape=found.votes.l.shape,
        l=found.votes.l,
        D=found.case.D.astype(np.float16),
        fit_mu=found.fit.theta.mu,
        mu=found.theta.mu,
        voted=found._voted.l,
        **masks,
    )


AIMS = {"cavity": 0.80, "residual": 0.65, "GTV": 0.85}


def draw(job: Patient) -> None:
    """Three planes through the middle of the cavity: T1c, FLAIR; ours solid, the truth dashed."""
    kept = np.load(KEPT / f"{job.name}.npz")
    shape = tuple(kept["shape"])
    masks = {
        (name, i): np.unpackbits(kept[f"{name}_{i}"], count=int(np.prod(shape))).reshape(shape) > 0
        for name in ("cavity", "residual")
        for i in (0, 1)
    }
    target = masks["cavity", 1] if masks["cavity", 1].any() else masks["residual", 1]
    points = np.argwhere(target)
    at = points[((points - points.mean(0)) ** 2).sum(1).argmin()]
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.8), facecolor="black")
    for line, n in zip(axes, (1, 3)):
        image = np.exp(kept["D"][n].astype(float))
        brightest = np.nanpercentile(image, 99.5)
        for axis, ax in enumerate(line):
            ax.imshow(image.take(at[axis], axis).T, cmap="gray", vmin=0, vmax=brightest, origin="lower")
            for (name, i), mask in masks.items():
                cut = mask.take(at[axis], axis).T
                if cut.any():
                    color = {"cavity": "#1fc7d1", "residual": "#E69F00"}[name]
                    style = ("solid", "dashed")[i]
                    ax.contour(cut, [0.5], colors=color, linewidths=0.9, linestyles=style)
            ax.set_axis_off()
    title = f"head {job.head}, {job.way}, class {'on' if job.postop else 'off'}"
    figure.suptitle(
        f"{title}: cavity blue, residual orange; ours solid, true dashed", color="white", fontsize=9
    )
    figure.subplots_adjust(0, 0, 1, 0.93, 0.01, 0.01)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"cavity_{job.head}_{job.way}.png", dpi=80, facecolor="black")
    plt.close(figure)


PAGE = """\
# After surgery

Written by `python research/cavity.py`. Simulated patients: heads that did not train the atlas, tumors drawn
by `draw_blob` (no shape prior), skull-stripped, T1, T1c, T2 and FLAIR at 1 mm. `way` is how the tumor was
removed (`src/tumoar/simulate/surgery.py`): `gross` has an enhancing wall of 1.5 mm that is no tumor,
`surface` has air in the cavity, `blood` old blood; `before` is the patient before surgery.
`class` is `--postop`. Columns are Dice; `organs` is the mean of brainstem, hippocampi and chiasm; volumes are
found / true; seconds are of one core, without placement and fit where these were kept.
"""


def real_patients() -> list[str]:
    """Patients before surgery, with `--postop` (`patients.py run postop`) and without (patients.md)."""
    from patients import RESULTS as RUNS
    from patients import scores

    found = scores("postop") if (RUNS / "postop").exists() else {}
    page = (PROJECT / "research" / "results" / "patients.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line]
    default = {row[0]: row for row in table}
    names = table[0]
    lines = [
        "| patient | cavity, cm³ | GTV, default | GTV, class | whole, default | whole, class |",
        "|" + "---|" * 6,
    ]
    for name, row in found.items():
        volumes = (RUNS / "postop" / name / "volumes.tsv").read_text(encoding="utf-8").splitlines()
        head = volumes[0].split("\t")
        known = {line.split("\t")[0]: dict(zip(head, line.split("\t"))) for line in volumes[1:]}
        cavity = float(known["Cavity"]["outlined_cm3"])
        cells = [f"{cavity:.2f}"]
        for key in ("gtv_dice", "whole_dice"):
            cells += [default[name][names.index(key)], f"{row[key]:.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines if found else []


def describe(job: Patient) -> str:
    """A patient in words."""
    return f"{job.head}, {job.way}, {'on' if job.postop else 'off'}, {job.settings}"


def write_page(rows: list[dict], missing: Sequence[Patient] = ()) -> str:
    """The page of results; patients that are `missing` are named."""
    lines = [
        *PAGE.splitlines(),
        "",
        "| head | way | class | settings | cavity | residual | GTV | whole | organs "
        "| cavity, cm³ | residual, cm³ | seconds |",
        "|" + "---|" * 12,
    ]
    for row in rows:
        scores = [
            f"{row[name]:.3f}" if row.get(f"{name}_cm3", (0, 1))[1] > 0 else "–"
            for name in ("cavity", "residual", "GTV", "whole", "organs")
        ]
        volumes = [
            f"{row[f'{name}_cm3'][0]:.1f} / {row[f'{name}_cm3'][1]:.1f}" for name in ("cavity", "residual")
        ]
        on = "on" if row["postop"] else "off"
        first = [row["head"], row["way"], on, row["settings"]]
        lines.append(f"| {' | '.join([*first, *scores, *volumes, str(row['seconds'])])} |")
    fast = [row for row in rows if row["settings"] == "fast" and row["seed"] == 1]
    after = [row for row in fast if row["postop"] and row["way"] != "before"]
    lines += ["", "Mean over patients after surgery with the class on, `--fast`:", ""]
    for name, aim in AIMS.items():
        known = [row[name] for row in after if row[f"{name}_cm3"][1] > 0]
        if known:
            spread = f"patients: {len(known)}, lowest {min(known):.3f}; aim {aim:.2f}"
            lines.append(f"- {name} {np.mean(known):.3f} ({spread})")
    real = real_patients()
    if real:
        lines += [
            "",
            "Development patients before surgery, T1c, FLAIR, T2 and T1, default settings:",
            "",
            *real,
        ]
    lines += ["", "Notes on each simulated patient, as `tumoar segment` gives them:", ""]
    for row in rows:
        name = describe(Patient(*(row[field] for field in Patient._fields)))
        lines.append(f"- {name}: {'; '.join(row['notes']) or 'none'}")
    if missing:
        lines += ["", f"Not run with this code: {'; '.join(map(describe, missing))}."]
    return "\n".join(lines) + "\n"


def parse_job(text: str) -> Patient:
    """HEAD,WAY,SEED,POSTOP,SETTINGS; the last three may be missing."""
    head, way, *rest = text.split(",")
    seed, postop, settings = (*rest, *("1", "1", "fast")[len(rest) :])
    return Patient(head, way, int(seed), postop == "1", settings)


def main() -> None:
    """Run all patients, or those asked for; rows go to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one patient, few sweeps")
    parser.add_argument("--only", nargs="+", type=parse_job, metavar="HEAD,WAY,SEED,POSTOP,SETTINGS")
    parser.add_argument("--report", action="store_true", help="the page of finished patients, without others")
    parser.add_argument("--draw", nargs="+", type=parse_job, default=[], help="pictures of finished ones")
    arguments = parser.parse_args()
    for job in arguments.draw:
        draw(job)
    if arguments.draw:
        return
    jobs = [Patient(h, w) for h in HELD_OUT for w in WAYS]
    jobs += [Patient(h, w, postop=False) for h in HELD_OUT for w in WAYS]
    jobs += [Patient(h, "before", postop=p) for h in HELD_OUT for p in (True, False)]
    full = [(HELD_OUT[0], "gross"), (HELD_OUT[0], "partial"), (HELD_OUT[1], "surface")]
    jobs += [Patient(h, w, settings="default") for h, w in full]
    jobs = [Patient(HELD_OUT[0], "partial")] if arguments.quick else arguments.only or jobs
    KEPT.mkdir(exist_ok=True, parents=True)
    kept = KEPT / "rows.jsonl"
    done = {}
    if kept.exists() and not arguments.quick:
        read = map(json.loads, kept.read_text().splitlines())
        done = {Patient(*(row[field] for field in Patient._fields)): row for row in read}
    if arguments.report:
        rows, missing = [done[job] for job in jobs if job in done], [job for job in jobs if job not in done]
        RESULTS.write_text(write_page(rows, missing), encoding="utf-8")
        return
    rows = []
    for job in jobs:
        row = done.get(job) or run(job, SHORT if arguments.quick else SETTINGS[job.settings])
        if job not in done and not arguments.quick:
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not (arguments.quick or arguments.only):
        RESULTS.write_text(write_page(rows), encoding="utf-8")
    print(json.dumps({"patients": len(rows), "rows": rows}))


if __name__ == "__main__":
    sys.exit(main())
