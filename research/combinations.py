"""The paper's three data combinations, and contrasts nobody trained for, on simulated patients.

python research/combinations.py [--quick] [--patients N] [--cache DIR]

Patients as in research/samples.py: the two heads that trained nothing, tumors that trained nothing, whole
heads at 1 mm, scanned as T1c, FLAIR, T2, DIR and CT. Each is placed, fitted and sampled (200 + 50 sweeps, the
cRBMs) with every combination; the third has the product of FLAIR and T2 in place of both, the last double
inversion recovery and T2 alone, which cannot separate core from edema. One thread. Finished rows are kept
in DIR under a key of the code and data that made them.

Prints, as its last line, one JSON object; the full run writes research/results/combinations.md and its box
plots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from fits import COLUMNS, DECIDES, PAPER, fitted, subset
from head_cases import LABELS, PROJECT, digest
from samples import SEED, collected, patient, sampled

from tumoar.inference.tally import Votes
from tumoar.io.models import default_model
from tumoar.report.boxes import box_plots
from tumoar.result.scores import Scores, compare
from tumoar.result.segmentation import organ_mask
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig
from tumoar.vocabulary.contrasts import core_is_identifiable, find_contrast

SCANS = ("T1c", "FLAIR", "T2", "DIR", "CT")
COMBINATIONS = (("T1c", "FLAIR", "T2", "CT"), ("T1c", "FLAIR", "T2"), ("T1c", "FLAIR2"), ("T2", "DIR"))


def scores(found: Votes, truth: Votes, names: tuple[str, ...]) -> dict[str, Scores]:
    """Every delivered organ and the whole tumor; core only where a contrast identifies it."""
    spacing = (1.0, 1.0, 1.0)
    organs = [o for o in LABELS.organs if o.name not in ("GTV", "Edema")]
    out = {o.name: compare(*(organ_mask(LABELS, o, v) for v in (found, truth)), spacing) for o in organs}
    out["whole tumor"] = compare(found.z > 0, truth.z > 0, spacing)
    if core_is_identifiable([find_contrast(n) for n in names]):
        out["core"] = compare(found.y > 0, truth.y > 0, spacing)
    return out


def rows(folder: Path, patients: int, gibbs: GibbsConfig) -> Iterator[dict]:
    """One row per patient and combination."""
    kept = folder / f"combinations_{digest(__file__, DECIDES)}_{gibbs.burn_in}_{gibbs.samples}"
    kept.mkdir(exist_ok=True)
    model = default_model()
    for number in range(patients):
        one = None
        for names in COMBINATIONS:
            path = kept / f"{number}_{'+'.join(names)}.json"
            if not path.exists():
                one = one or patient(number, folder, SCANS)
                case = subset(one.case, names)
                fit, _, _ = fitted(case, model, GemConfig())
                votes = sampled(case, fit, model, Config(gibbs=gibbs))[0].vote()
                found = {k: s.as_dict() for k, s in scores(votes, one.votes, names).items()}
                row = {"patient": one.name, "contrasts": list(names), "scores": found}
                path.write_text(json.dumps(row), encoding="utf-8")
            yield json.loads(path.read_text(encoding="utf-8"))


def page(found: list[dict]) -> str:
    groups = {"core": ("core",), "whole tumor": ("whole tumor",), **COLUMNS}
    lines = [
        "# Data combinations on simulated patients", "", *__doc__.strip().splitlines()[4:10], "",
        f"Dice (Hausdorff distance, 95 %, in mm), means over {len({r['patient'] for r in found})} patients,",
        f"both sides together; seed {SEED}. The paper's figures are of other images, outlined by hand.", "",
        "| contrasts | " + " | ".join(groups) + " |", "|" + "---|" * (len(groups) + 1),
    ]  # fmt: skip
    for names in COMBINATIONS:
        of = [r["scores"] for r in found if tuple(r["contrasts"]) == names]
        cells = []
        for parts in groups.values():
            values = [[s[p][k] for s in of for p in parts if p in s] for k in ("dice", "hausdorff95")]
            cells.append(f"{np.mean(values[0]):.3f} ({np.mean(values[1]):.1f})" if values[0] else "")
        lines.append(f"| {', '.join(names)} | " + " | ".join(cells) + " |")
    paper = {"core": 0.67, **PAPER}
    cells = [f"{paper[g]:.2f}" if g in paper else "" for g in groups]
    lines.append("| the paper's patients | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "![Box plots](../figures/combinations.png)", ""])


def draw(found: list[dict]) -> None:
    sides = {
        ", ".join(names): [
            {k: Scores(**v) for k, v in r["scores"].items()} for r in found if tuple(r["contrasts"]) == names
        ]
        for names in COMBINATIONS[:3]
    }
    box_plots(PROJECT / "research" / "figures" / "combinations.png", sides)


def dices(row: dict) -> str:
    scores = {k: round(s["dice"], 3) for k, s in row["scores"].items()}
    return f"{row['patient']} {'+'.join(row['contrasts'])} {scores}"


def main() -> None:
    is_quick, found = collected(__doc__, rows, 2, show=dices)
    if not is_quick:
        (PROJECT / "research" / "results" / "combinations.md").write_text(page(found), encoding="utf-8")
        draw(found)
    figures = {}
    for names in COMBINATIONS:
        whole = [r["scores"]["whole tumor"]["dice"] for r in found if tuple(r["contrasts"]) == names]
        figures["+".join(names)] = round(float(np.mean(whole)), 4)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
