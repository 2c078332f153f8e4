"""How ready core should be to grow: the level of its cRBM, by grid search on simulated patients.

python research/core_level.py [--quick] [--patients N] [--cache DIR]

Tumors of patients that trained both shape priors, in the two heads that trained neither atlas nor
surroundings, scanned as T1c, FLAIR and T2 in slices of 3 mm. Algorithm 2 runs once per patient, Algorithm 1
with every level, 60 + 20 sweeps; none of these patients is reported on anywhere else. One thread. Finished
rows are kept in DIR under a key of the code and data that made them.

Prints, as its last line, one JSON object; the full run writes research/results/core_level.md.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from fits import DATA, DECIDES, HEADS, WHOLE_ML, fitted, scanned
from head_cases import PROJECT, digest
from samples import SCANS, collected, sampled
from shape_cases import MODEL, load_models

from tumoar.io.models import default_model
from tumoar.result.scores import dice
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig

LEVELS = (0.0, -0.5, -1.0, -2.0)
SLICES = 3.0
ENHANCING_ML = 5.0
"""Least volume that enhances: without any, core cannot be separated from edema."""
SEED = 11


def training_tumors(count: int) -> list[str]:
    """Tumors that trained both priors, of the sizes wanted, in an order drawn once."""
    trained = [set(card["subjects"]) for card in load_models(MODEL)[1].values()]
    with open(DATA / "tumors" / "index.csv", newline="", encoding="utf-8") as table:
        ml = {r["case"]: (float(r["whole_ml"]), float(r["enhancing_ml"])) for r in csv.DictReader(table)}
    fit = [
        n
        for n in sorted(set.intersection(*trained))
        if WHOLE_ML[0] <= ml[n][0] <= WHOLE_ML[1] and ml[n][1] >= ENHANCING_ML
    ]
    return [str(n) for n in np.random.default_rng(SEED).permutation(fit)[:count]]


def rows(folder: Path, patients: int, gibbs: GibbsConfig) -> Iterator[dict]:
    """One row per patient and level."""
    kept = folder / f"core_level_{digest(__file__, DECIDES)}_{gibbs.burn_in}_{gibbs.samples}"
    kept.mkdir(exist_ok=True)
    model, names = default_model(), training_tumors(patients)
    for number in range(patients):
        paths = {level: kept / f"{number}_{level}.json" for level in LEVELS}
        if not all(path.exists() for path in paths.values()):
            head, rngs = HEADS[number % len(HEADS)], np.random.default_rng([SEED, number]).spawn(2)
            case, truth = scanned(head, names[number], SCANS, rngs, folder, SLICES)
            fit, _, _ = fitted(case, model, GemConfig())
            for level, path in paths.items():
                votes = sampled(case, fit, model, Config(level_y=level, gibbs=gibbs))[0].vote()
                row = {
                    "patient": f"head {head}, {names[number]}",
                    "level": level,
                    "core": round(dice(votes.y == 1, truth.y == 1), 4),
                    "whole": round(dice(votes.z == 1, truth.z == 1), 4),
                    "core_volume": round(float(votes.y.sum() / truth.y.sum()), 3),
                }
                path.write_text(json.dumps(row), encoding="utf-8")
        yield from (json.loads(path.read_text(encoding="utf-8")) for path in paths.values())


def page(found: list[dict]) -> str:
    lines = ["# The level of core", "", *__doc__.strip().splitlines()[4:9], ""]
    lines += [
        "Dice of core / of the whole tumor (volume of core, 1 as it is), by nats on core's visible bias.",
        "",
    ]
    lines += [
        "| patient | " + " | ".join(f"{level:g}" for level in LEVELS) + " |",
        "|---" * (len(LEVELS) + 1) + "|",
    ]
    for name in dict.fromkeys(r["patient"] for r in found):
        by = {r["level"]: r for r in found if r["patient"] == name}
        cells = [f"{by[v]['core']:.3f} / {by[v]['whole']:.3f} ({by[v]['core_volume']:.2f})" for v in LEVELS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    cells = [
        " / ".join(f"{np.mean([r[k] for r in found if r['level'] == v]):.3f}" for k in ("core", "whole"))
        for v in LEVELS
    ]
    lines.append("| **mean** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    is_quick, found = collected(__doc__, rows, 2, GibbsConfig(burn_in=60, samples=20))
    if not is_quick:
        (PROJECT / "research" / "results" / "core_level.md").write_text(page(found), encoding="utf-8")
    means = {
        f"{v:g}": round(float(np.mean([r["core"] for r in found if r["level"] == v])), 4) for v in LEVELS
    }
    print(json.dumps(means))


if __name__ == "__main__":
    main()
