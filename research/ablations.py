"""What our own decisions are worth: each taken back alone, on simulated patients.

python research/ablations.py [--quick] [--patients N] [--cache DIR]

Patients as in research/samples.py (heads and tumors that trained nothing), scanned as T1c, FLAIR, T2 and
CT in slices of 3 mm. Each is placed, fitted and sampled as the command does, and again with: unspecified
tissue possible at every node of the atlas, as the paper has it, not only where there may be brain; the
logarithm of CT, as of MR, in place of Hounsfield units; tumor considered in the whole brain in every sweep;
no level on core's visible bias. Fewer sweeps are read off the first chain. One thread. Finished rows are kept
in DIR under a key of the code and data that made them.

Prints, as its last line, one JSON object; the full run writes research/results/ablations.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
from fits import COLUMNS, DECIDES, fitted
from head_cases import LABELS, PROJECT, digest
from samples import collected, patient, sampled

from tumoar.geometry.image import HOUNSFIELD_RANGE, HOUNSFIELD_UNIT, Case
from tumoar.inference.tally import Votes
from tumoar.io.models import default_model
from tumoar.model.generative import Model
from tumoar.result.scores import dice
from tumoar.result.segmentation import organ_mask
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig

SCANS = ("T1c", "FLAIR", "T2", "CT")
SLICES = 3.0
SHIPPED = "as shipped"
VARIANTS = (
    SHIPPED,
    "unspecified tissue everywhere",
    "log of CT",
    "whole brain in every sweep",
    "core at level 0",
)
SHORTER = (20, 50, 100)
"""Burn-ins tried beside the one of the settings."""


def with_unspecified(model: Model) -> Model:
    """Unspecified brain tissue at 0.01 in each node (section 3.1)."""
    k = LABELS.l("unspecified brain tissue")
    alpha = model.atlas.alpha.astype(float)
    alpha[alpha[:, k] == 0, k] = 0.01
    return replace(model, atlas=replace(model.atlas, alpha=alpha / alpha.sum(1, keepdims=True)))


def with_log_ct(case: Case) -> Case:
    """log(HU + 1025) in place of Hounsfield units."""
    D = case.D.copy()
    ct = [c.name for c in case.contrasts].index("CT")
    D[ct] = np.log(D[ct] * HOUNSFIELD_UNIT - HOUNSFIELD_RANGE[0] + 1)
    return replace(case, D=D)


def figures(found: Votes, truth: Votes) -> dict[str, float]:
    """Dice of core, whole tumor and organs."""
    masks = {o.name: [organ_mask(LABELS, o, votes) for votes in (found, truth)] for o in LABELS.organs}
    organs = {name: np.mean([dice(*masks[n]) for n in parts]) for name, parts in COLUMNS.items()}
    tumor = {"core": dice(found.y == 1, truth.y == 1), "whole tumor": dice(found.z == 1, truth.z == 1)}
    return {k: round(float(v), 4) for k, v in (tumor | organs).items()}


def rows(folder: Path, patients: int, gibbs: GibbsConfig) -> Iterator[dict]:
    """One row per patient, variant and burn-in."""
    kept = folder / f"ablations_{digest(__file__, DECIDES)}_{gibbs.burn_in}_{gibbs.samples}"
    kept.mkdir(exist_ok=True)
    for number in range(patients):
        one, shipped = None, None
        for name in VARIANTS:
            path = kept / f"{number}_{name.replace(' ', '_')}.json"
            if not path.exists():
                one = one or patient(number, folder, SCANS, SLICES)
                model, case, config = default_model(), one.case, Config(gibbs=gibbs)
                if name == VARIANTS[1]:
                    model = with_unspecified(model)
                elif name == VARIANTS[2]:
                    case = with_log_ct(case)
                elif name == VARIANTS[3]:
                    config = Config(gibbs=gibbs.model_copy(update={"full_every": 1}))
                elif name == VARIANTS[4]:
                    config = Config(gibbs=gibbs, level_y=0.0)
                shares_fit = name not in VARIANTS[1:3]
                fit = shipped if shares_fit and shipped else fitted(case, model, GemConfig())[0]
                shipped = fit if shares_fit else shipped
                burn_ins = [n for n in SHORTER if n < gibbs.burn_in] if name == SHIPPED else []
                start = time.process_time()
                tallies = sampled(case, fit, model, config, [*burn_ins, gibbs.burn_in])
                seconds = round(time.process_time() - start, 1)
                made = [
                    {
                        "patient": one.name,
                        "variant": name if n == gibbs.burn_in else f"{n} sweeps of burn-in",
                        "cpu_s": seconds if n == gibbs.burn_in else None,
                        **figures(tally.vote(), one.votes),
                    }
                    for n, tally in zip([*burn_ins, gibbs.burn_in], tallies)
                ]
                path.write_text(json.dumps(made), encoding="utf-8")
            yield from json.loads(path.read_text(encoding="utf-8"))


def page(found: list[dict]) -> str:
    columns = ["core", "whole tumor", *COLUMNS]
    patients = list(dict.fromkeys(r["patient"] for r in found))
    lines = ["# Ablations", "", *__doc__.strip().splitlines()[4:10], ""]
    lines += [
        f"Mean Dice over {len(patients)} patient(s): {'; '.join(patients)}; CPU seconds of sampling.",
        "",
    ]
    lines += ["| | " + " | ".join(columns) + " | CPU s |", "|" + "---|" * (len(columns) + 2)]
    for name in dict.fromkeys(r["variant"] for r in found):
        of = [r for r in found if r["variant"] == name]
        cells = [f"{np.mean([r[c] for r in of]):.3f}" for c in columns]
        seconds = [r["cpu_s"] for r in of if r["cpu_s"] is not None]
        cells.append(f"{np.mean(seconds):.0f}" if seconds else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    is_quick, found = collected(__doc__, rows, 1)
    if not is_quick:
        (PROJECT / "research" / "results" / "ablations.md").write_text(page(found), encoding="utf-8")
    print(json.dumps({r["variant"]: {k: r[k] for k in ("core", "whole tumor")} for r in found}))


if __name__ == "__main__":
    main()
