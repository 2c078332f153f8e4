"""Real patients through the command line: agreement with the reference tumor, time, memory, flags.

python research/patients.py [--results DIR] [--variants all,mrf,...] [--patients NAME,...] [--quick]

Runs `tumoar segment` on the patients of the data folder, in each variant (all four contrasts, the first-order
MRF in place of the cRBMs, each contrast left out), unless DIR holds a finished result; what was interrupted
goes on where it was. Prints one JSON object as its last line. The full run writes
research/results/patients.md (all four contrasts, every patient) and research/results/variants.md (every
variant that is finished). None of the patients trained the atlas or the shape priors.
Reference labels: 1 edema, 2 and 3 core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from vote_fractions import binned, pooled, table

from tumoar.api import load_result
from tumoar.io.nifti import read_nifti
from tumoar.report.boxes import box_plots
from tumoar.result.scores import Scores, compare

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "research" / "results"
CONTRASTS = ("t1c", "flair", "t2", "t1")
VARIANTS = {"all": (), "mrf": ("--prior", "mrf")} | {f"no-{c}": () for c in CONTRASTS}
# By their appearance: enhancing clearly, or hardly at all.
ENHANCING = ("BraTS-GLI-00000-000", "BraTS2021_00006", "BraTS2021_00495")


def data_folder() -> Path:
    return Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data")) / "patients"


def segmented(patient: Path, out: Path, variant: str, flags: list[str]) -> Path:
    """The finished result of a patient, made if it is not there."""
    if not (out / "run.json").exists():
        used = [c for c in CONTRASTS if variant != f"no-{c}"]
        images = [part for c in used for part in (f"--{c}", str(patient / f"{c}.nii.gz"))]
        begun = (out.parent / f".{out.name}.checkpoints").exists()
        flags = [*VARIANTS[variant], *flags, *(["--resume"] if begun else [])]
        command = [sys.executable, "-m", "tumoar", "segment", *images, "-o", str(out), *flags]
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True)
    return out


def tumor_scores(patient: Path, out: Path) -> dict[str, Scores]:
    """Core and whole tumor against the reference, if there is one."""
    if not (patient / "tumor.nii.gz").exists():
        return {}
    stored, reference = load_result(out), read_nifti(patient / "tumor.nii.gz")
    core = stored.mask("GTV")
    found = {"core": (core, reference.data > 1), "whole": (core | stored.mask("Edema"), reference.data > 0)}
    return {k: compare(a, np.asarray(b), reference.grid.spacing) for k, (a, b) in found.items()}


def shares(patient: Path, out: Path) -> dict[str, list[list[float]]]:
    """Vote fractions of core and whole tumor against the reference, in tenths."""
    stored, reference = load_result(out), read_nifti(patient / "tumor.nii.gz")
    core = stored.probability("GTV")
    found = {
        "core": (core, reference.data > 1),
        "whole": (core + stored.probability("Edema"), reference.data > 0),
    }
    return {k: binned(np.round(share, 4), np.asarray(true)) for k, (share, true) in found.items()}


def row(patient: Path, out: Path) -> dict:
    """Figures of one patient."""
    stored = load_result(out)
    manifest = stored.manifest
    figures = {
        "seconds": round(sum(manifest["seconds"].values())),
        "peak_gb": manifest["peak_gb"],
        "threads": manifest["threads"],
        "GTV_cm3": stored.volume("GTV").outlined,
        "Edema_cm3": stored.volume("Edema").outlined,
        "left_out_mm3": sum(
            r["removed_voxels"] for r in manifest["volumes"] if r["name"] in ("GTV", "Edema")
        ),
        "flags": " ".join(sorted({n["id"] for n in manifest["notes"]})),
    }
    scored = tumor_scores(patient, out)
    if scored:
        figures["shares"] = shares(patient, out)
    for name, scores in scored.items():
        figures[f"{name}_dice"] = round(float(scores.dice), 3)
        figures[f"{name}_hd95_mm"] = round(scores.hausdorff95, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=PROJECT / "build" / "patients")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--patients", help="only these, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one patient, --fast")
    options = parser.parse_args()
    patients = sorted(p for p in data_folder().iterdir() if p.is_dir())
    chosen = [p for p in patients if options.patients is None or p.name in options.patients.split(",")]
    found: dict[str, dict[str, dict]] = {}
    for variant in ["all"] if options.quick else options.variants.split(","):
        for patient in chosen[:1] if options.quick else chosen:
            out = options.results / (variant + "-fast" * options.quick) / patient.name
            made = segmented(patient, out, variant, ["--fast"] if options.quick else [])
            found.setdefault(variant, {})[patient.name] = row(patient, made)
            shown = {k: v for k, v in found[variant][patient.name].items() if k != "shares"}
            print(variant, patient.name, shown, flush=True)
    if not options.quick:
        finished = everything(options.results, patients)
        (RESULTS / "patients.md").write_text(page(finished.get("all", {})), encoding="utf-8")
        (RESULTS / "variants.md").write_text(variants_page(finished), encoding="utf-8")
        draw(options.results, patients, finished)
    print(json.dumps(found))


def everything(results: Path, patients: list[Path]) -> dict[str, dict[str, dict]]:
    """Figures of all finished results, by variant and patient."""
    out: dict[str, dict[str, dict]] = {}
    for variant in VARIANTS:
        done = [p for p in patients if (results / variant / p.name / "run.json").exists()]
        if done:
            out[variant] = {p.name: row(p, results / variant / p.name) for p in done}
    return out


def page(found: dict[str, dict]) -> str:
    columns = ["core_dice", "core_hd95_mm", "whole_dice", "whole_hd95_mm", "GTV_cm3", "Edema_cm3"]
    columns += ["left_out_mm3", "seconds", "peak_gb", "threads", "flags"]
    lines = [
        "# Real patients",
        "",
        "Written by `python research/patients.py`: `tumoar segment` with T1c, FLAIR, T2 and T1, all",
        "settings at their defaults. No patient here trained the atlas or the shape priors, but settings",
        "were chosen looking at them: the start of the core, when Algorithm 2 stops, how often the whole",
        "brain is considered, the choice between shape priors and the level of core at BraTS2021_00006 and",
        "BraTS2021_01476, with a side look at 00495 and GLI-00000; deep gray matter as a structure of its",
        "own at 01476, 01480 and 01485; the size of specks that are left out at a healthy simulated head.",
        "Parts apart from the tumor are left out by a rule from label maps, after a look at 01480",
        "([decision 0033](../../docs/decisions/0033-small-components.md)).",
        "Priors trained otherwise were set aside, and the power on the likelihood was made the default,",
        "looking at all six (decisions [0010](../../docs/decisions/0010-shape-training.md) and",
        "[0034](../../docs/decisions/0034-likelihood-exponent.md)).",
        "01476, 01480 and 01485 hardly enhance: what their reference calls core cannot be seen in T1c, and",
        "where the result has no core at all it says so (T51; the distance is then infinite).",
        "Volumes are of the outlines.",
        "Seconds are wall time of placing, fitting and sampling on a machine that did other work: no",
        "measure of speed.",
        "",
        "| patient | " + " | ".join(columns) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    for name, figures in found.items():
        lines.append(f"| {name} | " + " | ".join(str(figures.get(c, "")) for c in columns) + " |")
    for title, names in groups(found):
        means = [np.mean([found[n][c] for n in names]) for c in columns[:4]]
        lines.append(f"| **mean, {title}** | " + " | ".join(f"{m:.3g}" for m in means) + " |" * 8)
    lines += [
        "",
        "## Calibration of vote fractions",
        "",
        "Voxels by their vote fraction, neither 0 nor 1, and how many are tumor by the reference: core",
        "of the patients that enhance, whole tumor of all. Where the model is right they are calibrated",
        "([calibration](calibration.md)); on real images they are not. They show where a border is",
        "in doubt, but neither how much, nor that it lies within the shell of voxels where samples differ:",
        "borders that fade, references that draw them elsewhere, noise that is not the model's are no part",
        "of what the samples vary.",
        "",
    ]
    enhancing = [f["shares"]["core"] for n, f in found.items() if "shares" in f and n in ENHANCING]
    whole = [f["shares"]["whole"] for f in found.values() if "shares" in f]
    lines += table(pooled(enhancing), pooled(whole)) if enhancing else []
    return "\n".join(lines) + "\n"


def groups(found: dict[str, dict]) -> list[tuple[str, list[str]]]:
    """Patients with a reference, by whether they enhance; groups without a patient are left out."""
    scored = [n for n, f in found.items() if "core_dice" in f]
    parts = [("enhancing", [n for n in scored if n in ENHANCING])]
    parts.append(("hardly enhancing", [n for n in scored if n not in ENHANCING]))
    return [(title, names) for title, names in parts if names]


def variants_page(found: dict[str, dict[str, dict]]) -> str:
    """Dice of core and whole tumor in every variant, patient by patient."""
    variants = list(found)
    lines = [
        "# Other priors and fewer contrasts on real patients",
        "",
        "Written by `python research/patients.py`. `all`: four contrasts and the cRBMs, as in",
        "[patients](patients.md); `mrf`: the first-order Markov random field in place of the cRBMs; `no-x`:",
        "contrast x left out. Core Dice / whole-tumor Dice. Without T1c core and edema cannot be separated,",
        "and the result says so. A cell is empty where a variant was not run, on all in the case of a mean.",
        "Settings were chosen looking at some of these patients, the level of core for the cRBMs alone (see",
        "[patients](patients.md)).",
        "",
        "| patient | " + " | ".join(variants) + " |",
        "|" + "---|" * (len(variants) + 1),
    ]

    def cell(figures: dict | None) -> str:
        return f"{figures['core_dice']:.3f} / {figures['whole_dice']:.3f}" if figures else ""

    def mean_cell(figures: list[dict], wanted: int) -> str:
        keys = ("core_dice", "whole_dice")
        return cell({k: np.mean([f[k] for f in figures]) for k in keys} if len(figures) == wanted else None)

    scored = [n for n, f in found.get("all", {}).items() if "core_dice" in f]
    for name in scored:
        lines.append(f"| {name} | " + " | ".join(cell(found[v].get(name)) for v in variants) + " |")
    for title, names in [*groups({n: found["all"][n] for n in scored}), ("all", scored)]:
        cells = [mean_cell([found[v][n] for n in names if n in found[v]], len(names)) for v in variants]
        lines.append(f"| **mean, {title}** | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "![Box plots](../figures/variants.png)", ""])


def draw(results: Path, patients: list[Path], found: dict[str, dict[str, dict]]) -> None:
    """Box plots of cRBM against MRF over the patients that have both."""
    both = [v for v in ("all", "mrf") if v in found]
    shown = [p for p in patients if all("core_dice" in found[v].get(p.name, {}) for v in both)]
    if both and shown:
        sides = {v: [tumor_scores(p, results / v / p.name) for p in shown] for v in both}
        box_plots(PROJECT / "research" / "figures" / "variants.png", sides)


if __name__ == "__main__":
    main()
