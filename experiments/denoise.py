"""Restore corrupted held-out tumor shapes with the cRBM and with the first-order MRF.

A share of the voxels in a box around each tumor is flipped, independently or in blobs; the posterior of
the shape under the prior and the known flip rate is sampled from the corrupted map on, and its majority
vote compared with the truth. One cRBM and one MRF serve all kinds of noise; the MRF's β is tuned on
training patients by the same measure. The box is part of the problem: nothing outside it is corrupted.
Prints, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np
from scipy.ndimage import binary_erosion
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parent))
from shape_cases import MODEL, PROJECT, load_models, shapes_of

from tumoar.model.shape.base import ShapePrior, of_color
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.numerics.convolve import REACH
from tumoar.train.shape_data import Shape, flips

KINDS = [(rate, grain) for grain in (0.0, 2.0) for rate in (0.05, 0.1, 0.2)]
BETAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
MARGIN = 8
TUNING_PATIENTS, TUNING_SWEEPS = 4, 40


def restore(prior: ShapePrior, seen, part, log_odds: float, sweeps: int, rng) -> np.ndarray:
    """Majority vote over the second half of the sweeps in the box `part`, started at the corrupted map."""
    v, votes = seen.copy(), np.zeros(seen.shape, int)
    region = np.zeros(seen.shape, bool)
    region[part] = True
    data = np.where(seen, np.float32(log_odds), np.float32(-log_odds))
    colors = [of_color(region, c, prior.colors) for c in range(prior.colors)]
    for sweep in range(sweeps):
        for own in colors:
            field = prior.field(v, own, int(rng.integers(2**63)))[own] + data[own]
            v[own] = rng.random(field.size, np.float32) < expit(field)
        if sweep >= sweeps // 2:
            votes += v
    return 2 * votes > sweeps - sweeps // 2


def dice(a, b) -> float:
    return float(2 * (a & b).sum() / max(1, a.sum() + b.sum()))


def corrupted(shape: Shape, kind, box: int | None, seed: int):
    """Truth, corrupted map, where it is corrupted, data term; a box is centered on the surface."""
    truth = np.pad(shape.v, MARGIN).astype(bool)
    rate, grain = kind
    rng = np.random.default_rng([seed, int(1000 * rate), int(grain)])
    part = (slice(None),) * 3
    if box is not None:
        surface = np.argwhere(truth & ~binary_erosion(truth))
        corner = surface[np.random.default_rng(seed).integers(len(surface))] - box // 2 + REACH
        # no voxel farther than a filter's reach matters to the box
        around = tuple(slice(c - REACH, c + box + REACH) for c in corner)
        truth = np.ascontiguousarray(
            np.pad(truth, REACH + box)[tuple(slice(a.start + box, a.stop + box) for a in around)]
        )
        part = (slice(REACH, -REACH),) * 3
    seen = truth.copy()
    seen[part] ^= flips(truth[part].shape, rate, grain, rng)
    return truth, seen, part, float(np.log((1 - rate) / rate)), rng


def score(prior: ShapePrior | None, shape: Shape, kind, box: int | None, seed: int, sweeps: int) -> float:
    truth, seen, part, log_odds, rng = corrupted(shape, kind, box, seed)
    restored = seen if prior is None else restore(prior, seen, part, log_odds, sweeps, rng)
    return dice(truth[part], restored[part])


def tune(shapes, box: int | None, sweeps: int) -> float:
    """β with the best mean Dice over all kinds of noise."""
    means = {}
    for beta in BETAS:
        scores = [
            score(FirstOrderMRF(beta), s, k, box, i, sweeps) for i, s in enumerate(shapes) for k in KINDS
        ]
        means[beta] = float(np.mean(scores))
    logging.info("beta %s", {b: round(m, 4) for b, m in means.items()})
    return max(means, key=lambda beta: means[beta])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small shapes, 20 sweeps")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--maps", default="zy")
    parser.add_argument("--patients", type=int, default=10)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--largest", type=int, default=None, help="leave out shapes above this volume in mm³")
    parser.add_argument("--box", type=int, help="corrupt only a box of this size on the surface")
    parser.add_argument("--beta", type=float, help="of the MRF, where it has been tuned before")
    parser.add_argument("--minutes", type=float, default=600, help="per map: stop after the patient at hand")
    parser.add_argument("--output", type=Path, default=PROJECT / "docs" / "results" / "denoise.md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    n, sweeps = (2, 20) if options.quick else (options.patients, options.sweeps)
    models, cards = load_models(options.model)
    figures, rows = {}, []
    for name in options.maps:
        train, held = shapes_of(name, cards[name])
        if options.quick or options.largest:
            largest = options.largest or 20_000
            train, held = ([s for s in x if s.volume < largest] for x in (train, held))
        chosen = np.random.default_rng(1).permutation(len(held))[:n]
        few = 2 if options.quick else TUNING_PATIENTS
        examples = [train[i] for i in np.random.default_rng(3).permutation(len(train))[:few]]
        beta = options.beta or tune(examples, options.box, 10 if options.quick else TUNING_SWEEPS)
        priors = {"crbm": models[name], "mrf": FirstOrderMRF(beta), "none": None}
        table: dict[str, list] = {p: [] for p in priors}
        logging.info("%s beta %s", name, beta)
        begin = time.monotonic()
        for i in chosen:
            for p, prior in priors.items():
                table[p].append([score(prior, held[i], k, options.box, 100 + int(i), sweeps) for k in KINDS])
            logging.info(
                "%s %s %s",
                name,
                held[i].volume,
                {p: np.round(x[-1], 3).tolist() for p, x in table.items()},
            )
            if time.monotonic() - begin > 60 * options.minutes:
                break
        table = {p: np.array(x) for p, x in table.items()}
        figures[name] = {p: round(float(x.mean()), 4) for p, x in table.items()} | {
            "beta": beta,
            "n": len(table["crbm"]),
        }
        wins = (table["crbm"].mean(1) > table["mrf"].mean(1)).sum()
        figures[name]["patients_better"] = int(wins)
        for j, (rate, grain) in enumerate(KINDS):
            kind = "independent" if grain == 0 else "blobs"
            values = " | ".join(f"{table[p][:, j].mean():.3f}" for p in priors)
            rows.append(f"| {name} | {kind} | {100 * rate:.0f} % | {values} |")
    if not options.quick:
        write(figures, rows, options)
    print(json.dumps(figures))


def write(figures, rows, options) -> None:
    patients = " and ".join(f"{f['n']} ({m})" for m, f in figures.items())
    lines = [
        "# Restoring corrupted shapes",
        "",
        f"Mean Dice over {patients} held-out patients (automatic segmentations),",
        f"{options.sweeps} sweeps from the corrupted map, majority vote over the second half. One cRBM and",
        "one MRF per map for all kinds of noise; the MRF's β was tuned on four training patients over the",
        "same kinds. The cRBM's training corrupted its windows likewise (rates 3 to 30 %, blobs of 1 to 3 mm",
        "grain); here blobs have 2 mm grain.",
        "",
        "| map | noise | flipped | cRBM | MRF | none |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *(
            f"- {m}: cRBM {f['crbm']}, MRF {f['mrf']} (β = {f['beta']}), none {f['none']};"
            f" cRBM better in {f['patients_better']} of {f['n']} patients"
            for m, f in figures.items()
        ),
        "",
    ]
    if options.box:
        lines += [f"Only a box of {options.box}³ voxels on the surface is corrupted; the rest is known.", ""]
    if options.largest:
        lines += [f"Shapes above {options.largest} mm³ were left out to save time.", ""]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
