"""Prediction intervals of core and whole tumor: learn them, and check them on patients left out.

python research/intervals.py fit [NAME] [--to FILE]      # results of build/patients/NAME → the packaged file
python research/intervals.py check [NAME] [--quick] [--write PAGE]   # leave one patient out
python research/intervals.py heads run --heads 10 20 …   # simulate heads and segment them
python research/intervals.py heads fit [--to FILE]       # organs, from those heads

`fit` compares the results of `python research/patients.py run NAME` (default: `default`) with the references,
and writes the calibration that the package ships. `check` learns from all patients but one, for each of them.
`heads run` simulates heads from label maps and segments them; it continues where it was stopped. Of the label
maps, only 10 and 20 did not train the atlas of the package. `heads fit` adds their organs to a file; they
hold for the sweeps with which the heads were run. The packaged file has no organs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from head_cases import LABELS, around_head, read_head
from patients import PROJECT, patients

from tumoar.api import StoredResult, load_result
from tumoar.app.calibrate import Compared, calibrate, compare_organs, compare_tumor, tumor_of_stored
from tumoar.geometry.border import Border
from tumoar.geometry.distance import depth
from tumoar.geometry.image import Image
from tumoar.geometry.resample import resample
from tumoar.io.calibration import SHIPPED, read_calibration, write_calibration
from tumoar.io.models import default_model
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.model.conformal import SHARES, central
from tumoar.model.expert import Learned, chance_inside, learn
from tumoar.result.masks import rearrange
from tumoar.result.scores import dice
from tumoar.simulate import Acquisition, Truth, draw_blob, draw_patient, draw_place, simulate

PACKAGED = PROJECT / "src" / "tumoar" / "data" / SHIPPED
HEADS = PROJECT / "build" / "intervals"
NAMES = ("core", "whole")
NEAR = 5.0
"""Millimeters from the border of the outline in which voxels are counted."""
BINS = 10
SPLITS = 2000
CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
TALLEST = 220.0  # mm of a simulated head, from the crown down
SWEEPS = (40, 50)
"""Burn-in and samples of a simulated head."""
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
        page.write_text("\n".join([*PAGE, *describe_learned(learned.structures), *lines]), encoding="utf-8")
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

    Uncertainty is 100 (1 − |2 p − 1|). At a threshold, voxels with more are left out. Voxels of the brain
    outside the box are certain: true negatives, or missed.
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
    dices = 2 * tp / np.maximum(2 * tp + fp + fn + missed, 1)
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
(2022), with 101 thresholds on 100 (1 − |2 p − 1|), in the brain: area under the Dice curve, areas under the
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


# ---- organs ------------------------------------------------------------------------------------------------


def heads(verb: str, to: Path, names: Sequence[str], sweeps: Sequence[int]) -> None:
    if verb == "run":
        for name in names:
            run_head(name, sweeps)
        return
    found = []
    for folder in sorted(HEADS.glob("head-*")):
        out = folder / "x".join(map(str, sweeps)) / "result"
        if (out / "run.json").exists():
            result = load_result(out)
            references = dict(true_organs(folder / "simulated" / "truth_labels.nii.gz", result))
            found.append(compare_organs(result, references, np.random.default_rng(0)))
            seen = {n: round(o.displacement, 2) for n, o in found[-1].observed.items()}
            print(folder.name, seen, flush=True)
    new = calibrate(found, "simulated heads")
    kept = [e for e in read_calibration(to).entries if e.cases != "simulated heads"] if to.exists() else []
    write_calibration(to, replace(new, entries=(*kept, *new.entries)))


def true_organs(path: Path, result: StoredResult) -> Iterator[tuple[str, Mask]]:
    """Organs of a simulated head on the voxels of a result."""
    truth, table = read_nifti(path), result.table
    for organ in table.organs:
        if not organ.tumor:
            there = np.isin(truth.data, [table.indices[table.l(s)] for s in organ.structures])
            yield organ.name, resample(there.astype(np.float32), truth.grid, result.grid) > 0.5


def run_head(name: str, sweeps: Sequence[int]) -> None:
    """Simulate a head and segment it, unless both are done.

    `name` is the number of a label map, such as "10", or "drawn-3" for the patient of the demo with seed 3.
    """
    folder = HEADS / (name if name.startswith("drawn") else f"head-{name}") / "x".join(map(str, sweeps))
    simulated, out = folder.parent / "simulated", folder / "result"
    folder.mkdir(parents=True, exist_ok=True)
    if not (simulated / "truth_labels.nii.gz").exists():
        images, truth = simulate_head(name)
        simulated.mkdir(exist_ok=True)
        for contrast, image in images.items():
            write_nifti(simulated / f"{contrast}.nii.gz", image.data, image.grid)
        write_nifti(simulated / "truth_tumor.nii.gz", truth.z.astype(np.uint8) + truth.y, truth.grid)
        write_nifti(simulated / "truth_labels.nii.gz", truth.l, truth.grid)
    if not (out / "run.json").exists():
        given = [p for c in CONTRASTS for p in (f"--{c.lower()}", str(simulated / f"{c}.nii.gz"))]
        begun = ["--resume"] if (folder / ".result.checkpoints").exists() else []
        settings = folder / "settings.toml"
        settings.write_text("[gibbs]\nburn_in = {}\nsamples = {}\n".format(*sweeps), encoding="utf-8")
        command = [sys.executable, "-m", "tumoar", "segment", *given, "-o", str(out), "-q", "--threads", "1"]
        done = subprocess.run([*command, "--config", str(settings), *begun])
        print(folder, done.returncode, flush=True)


def simulate_head(name: str) -> tuple[dict[str, Image], Truth]:
    """Images and truth: a label map with a tumor blob, or the patient of the demo."""
    scans = [Acquisition(c) for c in CONTRASTS]
    if name.startswith("drawn"):
        return draw_patient(default_model(), scans, int(name.partition("-")[2]))
    rng_tumor, rng_scan = np.random.default_rng([34, int(name)]).spawn(2)
    label_map, source, grid = around_head(*read_head(name, HEADS), margin=10.0, tallest=TALLEST)
    blob = draw_blob(rng_tumor, core_ml=float(rng_tumor.uniform(5, 40)), spacing=1.0)
    tumor = draw_place(blob, label_map, LABELS, rng_tumor)
    return simulate(label_map, grid, tumor, scans, LABELS, rng_scan, source=source)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("fit", "check", "heads"))
    parser.add_argument("name", nargs="?", default="default")
    parser.add_argument("--to", type=Path, default=PACKAGED)
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--quick", action="store_true", help="the first patients only")
    parser.add_argument("--heads", nargs="*", default=[], help="numbers of label maps, or drawn-SEED")
    parser.add_argument("--sweeps", type=int, nargs=2, default=SWEEPS, help="burn-in and samples")
    options = parser.parse_args()
    if options.verb == "fit":
        fit(options.name, options.to)
    elif options.verb == "check":
        check(options.name, options.write, FEW if options.quick else None)
    else:
        verb = "fit" if options.name == "fit" else "run"
        heads(verb, options.to, options.heads, options.sweeps)


if __name__ == "__main__":
    main()
