"""Cavity, residual tumor and GTV of simulated patients after surgery, with the class and without it.

Tumors are placed in heads that did not train the atlas, removed in the ways of `tumoar.simulate.surgery`, and
segmented from T1, T1c, T2 and FLAIR. Patients before surgery show what the class does without a cavity.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from head_cases import LABELS, PROJECT, around_head, at_one_mm, bare_case, read_head

from tumoar.app.pipeline import segment
from tumoar.io.models import default_model
from tumoar.result.scores import dice
from tumoar.result.segmentation import Segmentation
from tumoar.simulate import Acquisition, Surgery, Truth, draw_blob, draw_place, simulate
from tumoar.simulate.surgery import WAYS
from tumoar.vocabulary.config import FAST, Config
from tumoar.vocabulary.labels import add_cavity

CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
HELD_OUT = ("10", "20")
KEPT = Path(os.environ.get("TUMOAR_CACHE", "/tmp")) / "tumoar_cavity"
RESULTS = PROJECT / "research" / "results" / "cavity.md"
EXTRAS = {"gross": {"wall": True}, "partial": {}, "surface": {"air": True}, "collapsed": {}, "blood": {}}
OPENED = add_cavity(LABELS)


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


def run(head: str, way: str, seed: int, postop: bool, config: Config) -> dict:
    """Scores of one patient."""
    begun = time.monotonic()
    images, truth = make_patient(head, way, seed)
    D, affine = at_one_mm(images)
    stem = truth.l == LABELS.indices[LABELS.l("brainstem")]
    cavity, core, whole, brainstem = (truth.cavity, truth.y, truth.z | truth.cavity, stem)
    D, affine, (cavity, core, whole, brainstem) = crop(D, affine, [cavity, core, whole, brainstem])
    case = bare_case(D, affine, CONTRASTS, stripped=True)
    found = segment(case, default_model(), config.model_copy(update={"postop": postop}), seed=0)
    ours = found.votes
    our_cavity = (
        ours.l == found.table.cavity if found.table.cavity is not None else np.zeros(ours.l.shape, bool)
    )
    our_core = (ours.y == 1) & ~our_cavity
    row = {"head": head, "way": way, "seed": seed, "postop": postop}
    cubic = 1e-3
    pairs = {
        "cavity": (our_cavity, cavity),
        "residual": (our_core, core),
        "GTV": (our_cavity | our_core, cavity | core),
        "whole": (ours.z == 1, whole),
        "brainstem": (ours.l == LABELS.l("brainstem"), brainstem),
    }
    for name, (a, b) in pairs.items():
        row[name] = round(float(dice(a, b)), 3) if a.any() or b.any() else None
        row[f"{name}_cm3"] = [round(float(a.sum()) * cubic, 2), round(float(b.sum()) * cubic, 2)]
    row["closed_cm3"] = round(float(found.closed.sum()) * cubic, 2)
    row["seconds"] = round(time.monotonic() - begun)
    _keep(row, found, pairs)
    return row


def _keep(row: dict, found: Segmentation, pairs: dict) -> None:
    """Keep what is needed to look at a result."""
    name = f"{row['head']}_{row['way']}_{row['seed']}_{int(row['postop'])}"
    masks = {f"{k}_{i}": np.packbits(m) for k, v in pairs.items() for i, m in enumerate(v)}
    np.savez_compressed(
        KEPT / f"{name}.npz",
        shape=found.votes.l.shape,
        l=found.votes.l,
        D=found.case.D.astype(np.float16),
        fit_mu=found.fit.theta.mu,
        mu=found.theta.mu,
        voted=found._voted.l,
        **masks,
    )


AIMS = {"cavity": 0.80, "residual": 0.65, "GTV": 0.85}


def write_page(rows: list[dict]) -> str:
    """The page of results."""
    lines = [
        "# Simulated patients after surgery",
        "",
        "Made by `python research/cavity.py`: heads that did not train the atlas, skull-stripped, T1, T1c,",
        "T2 and FLAIR at 1 mm, `--fast`. `way` is how the tumor was removed",
        "(`src/tumoar/simulate/surgery.py`): `gross` has an enhancing wall of 1.5 mm that is not tumor,",
        "`surface` has air in the cavity, `before` is the patient before surgery; volumes are found / true.",
        "",
        "| head | way | class | cavity | residual | GTV | whole | brainstem | cavity, cm³ | residual, cm³ |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        scores = [
            "–" if row[name] is None else f"{row[name]:.3f}"
            for name in ("cavity", "residual", "GTV", "whole", "brainstem")
        ]
        volumes = [
            f"{row[f'{name}_cm3'][0]:.1f} / {row[f'{name}_cm3'][1]:.1f}" for name in ("cavity", "residual")
        ]
        on = "on" if row["postop"] else "off"
        lines.append(f"| {row['head']} | {row['way']} | {on} | {' | '.join([*scores, *volumes])} |")
    after = [row for row in rows if row["postop"] and row["way"] != "before"]
    lines += ["", "Mean over patients after surgery with the class on:", ""]
    for name, aim in AIMS.items():
        known = [row[name] for row in after if row[f"{name}_cm3"][1] > 0]
        if known:
            spread = f"{len(known)} patients, lowest {min(known):.3f}; aim {aim:.2f}"
            lines.append(f"- {name} {np.mean(known):.3f} ({spread})")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all patients, or those asked for; rows go to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one patient, few sweeps")
    parser.add_argument("--only", help="HEAD,WAY,SEED,POSTOP; may be several, separated by blanks")
    arguments = parser.parse_args()
    config = FAST
    jobs = [(h, w, 1, True) for h in HELD_OUT for w in WAYS]
    jobs += [(h, w, 1, False) for h in HELD_OUT[:1] for w in ("gross", "partial")]
    jobs += [(h, "before", 1, p) for h in HELD_OUT for p in (True, False)]
    if arguments.quick:
        jobs = [(HELD_OUT[0], "partial", 1, True)]
        config = FAST.model_copy(
            update={"gibbs": FAST.gibbs.model_copy(update={"burn_in": 15, "samples": 10})}
        )
    if arguments.only:
        jobs = [(h, w, int(s), p == "1") for h, w, s, p in (j.split(",") for j in arguments.only.split())]
    kept = KEPT / "rows.jsonl"
    done = {}
    if kept.exists() and not arguments.quick:
        done = {_key(row): row for row in map(json.loads, kept.read_text().splitlines())}
    rows = []
    for job in jobs:
        row = done.get(job) or run(*job, config)
        if job not in done and not arguments.quick:
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not (arguments.quick or arguments.only):
        RESULTS.write_text(write_page(rows), encoding="utf-8")
    print(json.dumps({"patients": len(rows), "rows": rows}))


def _key(row: dict) -> tuple:
    return row["head"], row["way"], row["seed"], row["postop"]


if __name__ == "__main__":
    sys.exit(main())
