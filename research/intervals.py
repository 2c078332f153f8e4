"""Prediction intervals: learn them, and check them on patients and simulated heads left out.

python research/intervals.py fit [NAME] [--to FILE]      # results of build/patients/NAME → the packaged file
python research/intervals.py check [NAME] [--quick] [--write PAGE]   # leave one patient out
python research/intervals.py heads run --heads 10 20 drawn-0 …   # simulate heads and segment them
python research/intervals.py heads fit [--to FILE]       # organs, from those heads → the packaged file
python research/intervals.py heads check [--write PAGE]  # leave one head out
python research/intervals.py heads demo [--write PAGE]   # patients of the demo

`fit` compares the results of `python research/patients.py run NAME` (default: `default`) with the references,
and writes the calibration that the package ships. `check` learns from all patients but one, for each of them.
The verbs of `heads` are those of `organ_intervals.py`; `run` continues where it was stopped. Each part of the
file, and of the page, stays when the other one is written.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import organ_intervals
from patients import PROJECT, patients

from tumoar.api import load_result
from tumoar.app.calibrate import Compared, calibrate, compare_tumor, tumor_of_stored
from tumoar.geometry.border import Border
from tumoar.geometry.distance import depth
from tumoar.io.calibration import SHIPPED, read_calibration, write_calibration
from tumoar.io.nifti import read_nifti
from tumoar.model.conformal import SHARES, central
from tumoar.model.expert import Learned, chance_inside, learn
from tumoar.result.masks import rearrange
from tumoar.result.scores import dice

PACKAGED = PROJECT / "src" / "tumoar" / "data" / SHIPPED
NAMES = ("core", "whole")
NEAR = 5.0
"""Millimeters from the border of the outline in which voxels are counted."""
BINS = 10
SPLITS = 2000
FEW = 11
"""Patients of a quick check; one is left out, and nine are needed."""

Mask = npt.NDArray[np.bool_]
Field = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Patient:
    """What the check needs of a patient, per structure: border, votes, reference, all inside the box."""

    name: str
    compared: Compared
    borders: dict[str, Border]
    votes: dict[str, Field]
    reference: dict[str, Mask]
    counts: dict[str, int]
    brain: int


def results(name: str) -> list[tuple[str, Path, Path]]:
    """Name, result and reference of every patient with a finished result."""
    root = Path(os.environ.get("TUMOAR_RESULTS", PROJECT / "build" / "patients"))
    rows = [(p.name, root / name / p.name, p / "tumor.nii.gz") for p in patients()]
    return [row for row in rows if (row[1] / "run.json").exists()]


def load(name: str, out: Path, reference: Path) -> Patient:
    result, image = load_result(out), read_nifti(reference)
    true = rearrange(np.asarray(image.data), image.grid, result.grid)
    assert true is not None, f"{name}: another grid"
    masks = {"core": true > 1, "whole": true > 0}
    compared = compare_tumor(result, masks["core"], masks["whole"], np.random.default_rng(0))
    tumor = tumor_of_stored(result)
    borders = {n: b for n in NAMES if n in compared.observed and (b := tumor.border(n)) is not None}
    votes = {"core": tumor.core_votes, "whole": tumor.whole_votes}
    return Patient(
        name,
        compared,
        borders,
        {n: votes[n][b.box] for n, b in borders.items()},
        {n: masks[n][b.box] for n, b in borders.items()},
        {n: int(masks[n].sum()) for n in NAMES},
        int(tumor.brain.sum()),
    )


def fit(name: str, to: Path) -> None:
    found = []
    for patient, out, reference in results(name):
        found.append(load(patient, out, reference).compared)
        seen = {n: round(o.displacement, 2) for n, o in found[-1].observed.items()}
        print(patient, seen, f"{found[-1].confirmed} of {found[-1].omitted} omitted parts", flush=True)
    new = calibrate(found)
    kept = [e for e in read_calibration(to).entries if "core" not in e.structures] if to.exists() else []
    write_calibration(to, replace(new, entries=(*new.entries, *kept)))
    print(to.read_text(encoding="utf-8"))


# ---- leave one out -----------------------------------------------------------------------------------------


def check(name: str, page: Path | None, most: int | None) -> None:
    everyone = [load(*row) for row in results(name)[:most]]
    lines, figures = [], {}
    for structure in NAMES:
        there = [p for p in everyone if structure in p.borders]
        rows, summary, table = leave_one_out(structure, there)
        figures[structure] = summary
        lines += [
            f"## {structure.capitalize()}",
            "",
            *describe(summary),
            "",
            *rows,
            "",
            *table,
            "",
        ]
    for line in lines:
        print(line)
    if page:
        learned = calibrate([p.compared for p in everyone]).entries[0]
        heads = organ_intervals.section(page)
        text = "\n".join([*PAGE, *describe_learned(learned.structures), *lines])
        page.write_text(text + heads, encoding="utf-8")
    print(json.dumps(figures))


def leave_one_out(structure: str, there: Sequence[Patient]) -> tuple[list[str], dict, list[str]]:
    rows = ["| patient | outlined | 50 % interval | 90 % interval | reference |", "|---|---|---|---|---|"]
    covered, widths, scores = {s: [] for s in SHARES}, {s: [] for s in SHARES}, {"votes": [], "predicted": []}
    tenths = {kind: np.zeros((3, BINS)) for kind in scores}
    for p in there:
        others = [q.compared.observed[structure] for q in there if q is not p]
        learned, border = learn(others), p.borders[structure]
        cells = [f"{border.volume(0):.1f}"]
        true = p.counts[structure] * border.voxel
        for share in SHARES:
            low, high = volume_interval(border, learned, share)
            covered[share].append(low <= true <= high)
            widths[share].append((high - low) / border.volume(0))
            cells.append(f"{low:.1f} to {high:.1f}" + ("" if covered[share][-1] else " ✗"))
        rows.append(f"| {p.name} | " + " | ".join([*cells, f"{true:.1f}"]) + " |")
        chance = chance_inside(learned, border.levels)
        outline, reference = border.levels < 0, p.reference[structure]
        near = np.abs(depth(outline, border.spacing) + np.mean(border.spacing) / 2) <= NEAR
        for kind, share_of in (("votes", p.votes[structure]), ("predicted", chance)):
            tenths[kind] += binned(share_of[near], reference[near])
            scores[kind].append(qu_brats(share_of, outline, reference, p.brain, p.counts[structure]))
    a = np.array([p.compared.observed[structure].displacement for p in there])
    summary = {
        "patients": len(there),
        **{f"coverage {s}": float(np.mean(covered[s])) for s in SHARES},
        **{f"median width {s}": float(np.median(widths[s])) for s in SHARES},
        **{f"halves {s}": half_splits(a, s) for s in SHARES},
        **{f"{kind} ece": ece(tenths[kind]) for kind in scores},
        **{f"{kind} tenths": by_tenths(tenths[kind]) for kind in scores},
        **{f"{kind} qu": np.mean(scores[kind], 0).round(4).tolist() for kind in scores},
    }
    return rows, summary, reliability(tenths)


def volume_interval(border: Border, learned: Learned, share: float) -> tuple[float, float]:
    """Volumes, cm³, between which the reference lies with this probability; the outline's is among them."""
    volumes = [border.volume(a) for a in (*learned.interval(share), 0.0)]
    return min(volumes), max(volumes)


def half_splits(a: npt.NDArray[np.float64], share: float) -> float:
    """Coverage of displacements in one half of the patients by intervals from the other, on average."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(SPLITS):
        order = rng.permutation(len(a))
        half = (len(a) + 1) // 2
        low, high = central(a[order[:half]], share)
        low, high = min(low, 0), max(high, 0)
        hits.append(np.mean((a[order[half:]] >= low) & (a[order[half:]] <= high)))
    return float(np.mean(hits))


def binned(p: npt.NDArray, true: npt.NDArray) -> npt.NDArray[np.float64]:
    """(3, BINS): voxels, sum of probabilities, true voxels."""
    at = np.minimum((p * BINS).astype(int), BINS - 1)
    return np.stack([np.bincount(at, w, BINS) for w in (np.ones(len(p)), p, true)])


def ece(table: npt.NDArray) -> float:
    """Expected calibration error: mean difference of tenths, weighted by their voxels."""
    return float(np.abs(table[1] - table[2]).sum() / table[0].sum())


def by_tenths(table: npt.NDArray) -> float:
    """Mean difference of tenths, all of the same weight."""
    at = table[0] > 0
    return float((np.abs(table[1] - table[2])[at] / table[0][at]).mean())


def reliability(tenths: dict[str, npt.NDArray]) -> list[str]:
    lines = ["| probability | votes: voxels | in the reference | predicted: voxels | in the reference |"]
    lines.append("|---|---|---|---|---|")
    for k in range(BINS):
        cells = []
        for kind in ("votes", "predicted"):
            n, _, true = tenths[kind][:, k]
            cells += [f"{n:.0f}", f"{true / max(n, 1):.2f}"]
        lines.append(f"| {k / BINS:.1f} to {(k + 1) / BINS:.1f} | " + " | ".join(cells) + " |")
    return lines


def qu_brats(p: Field, outline: Mask, reference: Mask, brain: int, true: int) -> tuple[float, ...]:
    """QU-BraTS (Mehta et al. 2022): Dice AUC, filtered true positive and negative ratio AUC, and score.

    As in the authors' code (github.com/RagMeh11/QU-BraTS), which has 41 thresholds by default: voxels with
    more uncertainty than a threshold are left out, and Dice is 1 if nothing remains. Uncertainty is
    100 (1 − |2 p − 1|). Voxels of the brain outside the box are certain: true negatives, or missed.
    """
    uncertainty = 100 * (1 - np.abs(2 * p - 1))
    missed = true - int(reference.sum())
    negatives = brain - int((outline | reference).sum()) - missed
    inside = ~(outline | reference)
    certain = negatives - int(inside.sum())
    thresholds = np.arange(101)
    at = np.minimum(np.ceil(uncertainty), 100).astype(int)

    def remaining(mask: Mask) -> npt.NDArray[np.int64]:
        return np.cumsum(np.bincount(at[mask], minlength=101))

    tp, fp, fn = (remaining(m) for m in (outline & reference, outline & ~reference, ~outline & reference))
    tn = remaining(inside) + max(certain, 0)
    either = 2 * tp + fp + fn + missed
    dices = np.where(either > 0, 2 * tp / np.maximum(either, 1), 1)
    auc = float(np.trapezoid(dices, thresholds) / 100)
    ftp = float(np.trapezoid(1 - tp / max(tp[-1], 1), thresholds) / 100)
    ftn = float(np.trapezoid(1 - tn / max(tn[-1], 1), thresholds) / 100)
    return auc, ftp, ftn, (auc + (1 - ftp) + (1 - ftn)) / 3, float(dice(outline, reference))


# ---- page --------------------------------------------------------------------------------------------------

PAGE = """\
# Prediction intervals

Written by `python research/intervals.py check default --write PAGE`, from the results of
`python research/patients.py run default` ([patients](patients.md)). Each patient is judged by numbers learned
from all others. Volumes in cm³; ✗ marks a reference outside the interval. Patients whose outline has no core
count for the whole tumor only: their GTV is the whole tumor.

The coverage of an interval by leaving one patient out is a matter of ranks in conformal prediction and says
little by itself; "other half" is the coverage of patients by intervals from a random half that they do not
belong to. Six references are by readers and fifteen by an ensemble of networks, so that the intervals are
about such references. The settings of the package were chosen on the same patients, which makes their
displacements somewhat smaller than those of new patients.

Voxels are those within 5 mm of the border of the outline, pooled. The expected calibration error weights
tenths of probability by their voxels, "by tenths" weights them equally. QU-BraTS is the score of Mehta et al.
(2022, https://melba-journal.org/papers/2022:026.html), in the brain, with Dice, filtered true positives and
true negatives as in the authors' code (github.com/RagMeh11/QU-BraTS) and 101 thresholds on
100 (1 − |2 p − 1|), where that code has 41 by default: area under the Dice curve, areas under the
ratios of filtered true positives and true negatives, and the score, which is higher for votes: it subtracts
the true positives that are filtered as uncertain, and votes are certain nearly everywhere, also where they
are wrong. The area under the Dice curve, which rises more with predicted probabilities, shows that they are
uncertain in the right places.
""".splitlines()
PAGE.append("")


def describe(s: dict) -> list[str]:
    lines = ["| | 50 % | 90 % |", "|---|---|---|"]
    for label, key, form in (
        ("coverage, one left out", "coverage", "{:.0f} %"),
        ("coverage, other half", "halves", "{:.0f} %"),
        ("median width, of the outlined volume", "median width", "{:.0f} %"),
    ):
        lines.append(f"| {label} | " + " | ".join(form.format(100 * s[f"{key} {x}"]) for x in SHARES) + " |")
    lines += ["", "| | calibration error | by tenths | Dice AUC | filtered TP | filtered TN | QU-BraTS |"]
    lines.append("|---|---|---|---|---|---|---|")
    for kind in ("votes", "predicted"):
        cells = [
            f"{s[f'{kind} ece']:.3f}",
            f"{s[f'{kind} tenths']:.3f}",
            *(f"{v:.3f}" for v in s[f"{kind} qu"][:4]),
        ]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def describe_learned(structures: dict[str, Learned]) -> list[str]:
    lines = ["| | patients | 50 % of displacements, mm | 90 % | local part, mm | log SD | length, mm |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, learned in structures.items():
        bounds = ["{:+.2f} to {:+.2f}".format(*learned.interval(share)) for share in SHARES]
        numbers = (learned.roughness, learned.variation, learned.length)
        cells = [str(len(learned.displacements)), *bounds, *(f"{v:g}" for v in numbers)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("fit", "check", "heads"))
    parser.add_argument("name", nargs="?", default="default", help="of results, or run, fit, check or demo")
    parser.add_argument("--to", type=Path, default=PACKAGED)
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--quick", action="store_true", help="the first patients only")
    parser.add_argument("--heads", nargs="*", default=[], help="numbers of label maps, or drawn-SEED")
    parser.add_argument("--sweeps", type=int, nargs=2, help="burn-in and samples")
    options = parser.parse_args()
    if options.verb == "fit":
        fit(options.name, options.to)
    elif options.verb == "check":
        check(options.name, options.write, FEW if options.quick else None)
    elif options.name == "run":
        for name in options.heads:
            organ_intervals.run_head(name, options.sweeps)
    elif options.name == "fit":
        organ_intervals.fit(options.to)
    elif options.name == "check":
        organ_intervals.check(options.write)
    elif options.name == "demo":
        organ_intervals.demo(options.write)
    else:
        parser.error(f"heads {options.name}: run, fit, check or demo")


if __name__ == "__main__":
    main()
