"""Tumor after Algorithm 2 alone, with the first-order MRF, and with the cRBMs; and calibration of the votes.

python research/samples.py [--quick] [--patients N] [--cache DIR]

Patients are simulated from the two heads that trained neither atlas nor surroundings, with tumors of patients
that trained neither shape prior, scanned as T1c, FLAIR and T2 at 1 mm. Algorithm 2 runs once per patient; its
most probable labels are the first result. From there Algorithm 1 runs with each prior, 200 + 50 sweeps, as
the command does. A vote fraction is calibrated if, of the voxels with it, that fraction is tumor. One
thread. Finished rows are kept in DIR under a key of the code and data that made them.

Prints, as its last line, one JSON object; the full run writes research/results/samples.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from fits import DECIDES, HEADS, fitted, scanned, unseen_tumors
from head_cases import PROJECT, digest
from threadpoolctl import threadpool_limits
from vote_fractions import binned, pooled, table, worst_tenth

from tumoar.geometry.image import Case
from tumoar.inference import gibbs
from tumoar.inference.gem import Fit
from tumoar.inference.tally import Tally, Votes
from tumoar.io.models import default_model
from tumoar.model.generative import Model, select_prior
from tumoar.result.scores import dice
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig

Mask = npt.NDArray[np.bool_]

SCANS = ("T1c", "FLAIR", "T2")
METHODS = ("algorithm 2", "mrf", "crbm")
MAPS = {"core": ("core",), "whole": ("core", "edema")}
SEED = 7
BLURRED = """The simulated scanner blurs, and edema fades towards its border; the model knows neither. Vote
fractions of the whole tumor are then too low near its border and those of core too high: they show where a
border is in doubt, and are no probabilities. What they are where the model is right:
[calibration](calibration.md)."""


@dataclass(frozen=True)
class Patient:
    """Images, and what is in them."""

    name: str
    case: Case
    votes: Votes

    @property
    def truth(self) -> Mapping[str, Mask]:
        """Core and whole tumor."""
        return {"core": self.votes.y == 1, "whole": self.votes.z == 1}


def patient(number: int, folder: Path, names: tuple[str, ...] = SCANS, slices: float = 1.0) -> Patient:
    """Number by number, other heads and other tumors; scanned as named, in slices so many mm thick."""
    head, name = HEADS[number % len(HEADS)], unseen_tumors()[len(HEADS) + number]
    rngs = np.random.default_rng([SEED, number]).spawn(2)
    return Patient(f"head {head}, {name}", *scanned(head, name, names, rngs, folder, slices))


def sampled(case: Case, fit: Fit, model: Model, config: Config, burn_ins: Sequence[int] = ()) -> list[Tally]:
    """All samples of one chain, counted from each of the burn-ins on; by default from that of the config."""
    model = select_prior(model, config)
    shapes = (model.shape_z, model.shape_y)
    chain, begin = gibbs.initialize_chain(case, fit, shapes, model.tumor_mm3, config, SEED)
    tallies = {n: Tally(chain.labels, chain.volume.use) for n in burn_ins or (config.gibbs.burn_in,)}
    for state, info in gibbs.iter_sweeps(chain, begin, config.gibbs):
        for burn_in, tally in tallies.items():
            if burn_in < info.sweep <= burn_in + config.gibbs.samples:
                tally.add(state.labels)
    return list(tallies.values())


def results(one: Patient, model: Model, gibbs_config: GibbsConfig) -> Iterator[dict]:
    """One row per method."""

    def row(method: str, found: Mapping[str, Mask], **more) -> dict:
        scores = {m: round(dice(found[m] == 1, one.truth[m]), 4) for m in MAPS}
        return {"patient": one.name, "method": method, **scores, **more}

    fit, first, _ = fitted(one.case, model, GemConfig())
    yield row(METHODS[0], {"core": first.y, "whole": first.z})
    for prior in METHODS[1:]:
        start = time.process_time()
        (tally,) = sampled(one.case, fit, model, Config(prior=prior, gibbs=gibbs_config))
        votes = tally.vote()
        fractions = {m: binned(tally.fraction(tumor=parts), one.truth[m]) for m, parts in MAPS.items()}
        seconds = round(time.process_time() - start, 1)
        yield row(prior, {"core": votes.y, "whole": votes.z}, fractions=fractions, cpu_s=seconds)


def rows(folder: Path, patients: int, config: GibbsConfig) -> Iterator[dict]:
    """All rows; those of a patient who was finished before are read."""
    kept = folder / f"samples_{digest(__file__, DECIDES)}_{config.burn_in}_{config.samples}"
    kept.mkdir(exist_ok=True)
    for number in range(patients):
        path = kept / f"{number}.json"
        if not path.exists():
            found = list(results(patient(number, folder), default_model(), config))
            path.write_text(json.dumps(found), encoding="utf-8")
        yield from json.loads(path.read_text(encoding="utf-8"))


def of_method(found: list[dict], method: str, name: str) -> np.ndarray:
    """Calibration of a map over all patients."""
    return pooled([r["fractions"][name] for r in found if r["method"] == method])


def page(found: list[dict]) -> str:
    lines = ["# Algorithm 1 on simulated patients", "", *__doc__.strip().splitlines()[4:10], ""]
    lines += ["Dice of tumor core and whole tumor.", ""]
    lines += ["| patient | " + " | ".join(f"{m}: core | whole" for m in METHODS) + " |", "|---" * 7 + "|"]
    for name in dict.fromkeys(r["patient"] for r in found):
        by = {r["method"]: r for r in found if r["patient"] == name}
        lines.append(
            f"| {name} | " + " | ".join(f"{by[m]['core']:.4f} | {by[m]['whole']:.4f}" for m in METHODS) + " |"
        )
    cells = [f"{np.mean([r[k] for r in found if r['method'] == m]):.4f}" for m in METHODS for k in MAPS]
    lines += ["| **mean** | " + " | ".join(cells) + " |", ""]
    lines += [BLURRED, ""]
    lines += ["Voxels by their vote fraction with the cRBMs, neither 0 nor 1; how many are tumor.", ""]
    lines += table(*(of_method(found, "crbm", m) for m in MAPS))
    return "\n".join(lines) + "\n"


Rows = Callable[[Path, int, GibbsConfig], Iterator[dict]]


def collected(
    about: str,
    rows: Rows,
    patients: int,
    gibbs: GibbsConfig | None = None,
    show: Callable[[dict], object] = lambda row: row,
) -> tuple[bool, list[dict]]:
    """The command line that experiments on simulated patients share: whether it is quick, and all rows."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="one patient, 4 + 2 sweeps")
    parser.add_argument("--patients", type=int, default=patients)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "tumoar-experiments")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.quick:
        options.patients, gibbs = 1, GibbsConfig(burn_in=4, samples=2)
    found = []
    with threadpool_limits(1, "blas"):
        for row in rows(options.cache, options.patients, gibbs or GibbsConfig()):
            found.append(row)
            print(show(row), flush=True)
    return options.quick, found


def main() -> None:
    is_quick, found = collected(
        __doc__, rows, 3, show=lambda row: {k: v for k, v in row.items() if k != "fractions"}
    )
    figures: dict[str, dict[str, float]] = {}
    for method in METHODS:
        of = [r for r in found if r["method"] == method]
        figures[method] = {k: round(float(np.mean([r[k] for r in of])), 4) for k in MAPS}
    for name in MAPS:
        figures["crbm"][f"{name}_worst_tenth"] = worst_tenth(of_method(found, "crbm", name))
    if not is_quick:
        (PROJECT / "research" / "results" / "samples.md").write_text(page(found), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
