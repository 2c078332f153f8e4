"""The 21 development patients through the command line, in any configuration.

python research/patients.py run NAME [--config FILE] [--flags "…"] [--contrasts t1c,flair] [--workers 2]
python research/patients.py report NAME [--write PAGE]
python research/patients.py compare NAME OTHER
python research/patients.py choose NAME OTHER …

`run` segments every patient that has no finished result in build/patients/NAME and continues interrupted
ones. `report` scores core and whole tumor against the reference, per patient and per group, with bootstrap
intervals over patients. `compare` gives paired differences. `choose` picks a configuration by leaving
patients out: for each patient the configuration that is best on all others is scored on this one.

Six patients have a reference by readers, fifteen one by an ensemble of networks. All are development data:
the settings of the package were chosen on them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from tumoar.api import load_result
from tumoar.io.nifti import read_nifti
from tumoar.result.scores import compare, dice

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "build" / "patients"
FIGURES = (
    "core_dice",
    "core_hd95",
    "core_lesion",
    "whole_dice",
    "whole_hd95",
    "whole_lesion",
    "gtv_dice",
    "far_cm3",
)
GROUPS = ("clearly enhancing", "patchily enhancing", "not enhancing")
FAR = 10.0
"""Millimeters from the reference beyond which tumor is counted as remote."""
LEAST_LESION = 50
"""Voxels: smaller lesions do not count (BraTS 2023, glioma)."""

PAGE = """\
# Development patients

Written by `python research/patients.py run default` and `report default --write PAGE`: `tumoar segment` with
T1c, FLAIR, T2 and T1, default settings. Groups are by the reference: not enhancing, less than 1 cm³ that
enhances; patchily, less than half of the core; clearly, the others. The references of BraTS2021 and of
BraTS-GLI-00000 are by readers, the others by an ensemble of networks. `lesion` is the lesion-wise Dice of
BraTS 2023. `gtv` compares the GTV with the reference core, and with the whole reference tumor in patients
that do not enhance, where `core` too is the GTV, which is the whole tumor there. `far` is tumor more than
10 mm from the reference. Intervals are 95 % bootstrap intervals over patients.

Settings were chosen on these patients (decision 0036); none of the figures is a test.
""".splitlines()
PAGE.append("")

Mask = npt.NDArray[np.bool_]
Row = dict[str, float | str]


def patients() -> list[Path]:
    data = Path(os.environ.get("TUMOAR_DATA", PROJECT.parent / "shared" / "data"))
    folders = [p for name in ("patients", "patients-automatic") for p in (data / name).glob("BraTS*")]
    return sorted(p for p in folders if (p / "tumor.nii.gz").exists())


def run(patient: Path, out: Path, contrasts: Sequence[str], flags: Sequence[str]) -> None:
    """Segment a patient unless a finished result is there; continue an interrupted run."""
    if (out / "run.json").exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    images = [part for c in contrasts for part in (f"--{c}", str(patient / f"{c}.nii.gz"))]
    begun = (out.parent / f".{out.name}.checkpoints").exists()
    command = [sys.executable, "-m", "tumoar", "segment", *images, "-o", str(out), "-q", *flags]
    done = subprocess.run([*command, *(["--resume"] if begun else [])], capture_output=True, text=True)
    print(out.name, "done" if done.returncode in (0, 13) else done.stderr.strip(), flush=True)


def lesion_dice(mask: Mask, reference: Mask) -> float:
    """Lesion-wise Dice of BraTS 2023.

    Reference lesions are dilated by three voxels, and those that meet are one. Each is compared with all
    predicted lesions that touch it; a predicted lesion that touches none counts as one of Dice 0.
    """
    every = np.ones((3, 3, 3), bool)
    merged, count = ndimage.label(ndimage.binary_dilation(reference, every, iterations=3), every)
    found, predicted = ndimage.label(mask, every)
    scores, used = [], np.zeros(predicted + 1, bool)
    for k in range(1, count + 1):
        near = merged == k
        lesion = near & reference
        touching = np.unique(found[near & mask])
        used[touching] = True
        if lesion.sum() > LEAST_LESION:
            scores.append(dice(np.isin(found, touching[touching > 0]), lesion))
    sizes = np.bincount(found.ravel(), minlength=predicted + 1)
    false = int(((sizes > LEAST_LESION) & ~used)[1:].sum())
    return float(np.sum(scores) / max(len(scores) + false, 1)) if scores or false else 1.0


def group_of(reference: npt.NDArray) -> str:
    """By the reference: less than 1 cm³ that enhances, or less than half of the core, or more."""
    enhancing, core = int((reference == 3).sum()), int((reference > 1).sum())
    if enhancing < 1000:
        return GROUPS[2]
    return GROUPS[1] if enhancing < 0.5 * core else GROUPS[0]


def score(patient: Path, out: Path) -> Row:
    stored, image = load_result(out), read_nifti(patient / "tumor.nii.gz")
    reference = np.asarray(image.data)
    core = stored.mask("GTV")
    whole = core | stored.mask("Edema")
    row: Row = {"patient": patient.name, "group": group_of(reference)}
    for name, mask, true in (("core", core, reference > 1), ("whole", whole, reference > 0)):
        found = compare(mask, true, image.grid.spacing)
        row |= {f"{name}_dice": float(found.dice), f"{name}_hd95": found.hausdorff95}
        row |= {f"{name}_lesion": lesion_dice(mask, true), f"{name}_cm3": found.volume}
        row[f"{name}_reference_cm3"] = found.reference_volume
    target = reference > (0 if row["group"] == GROUPS[2] else 1)
    row["gtv_dice"] = float(dice(stored.mask("GTV"), target))
    far = ndimage.distance_transform_edt(reference == 0, image.grid.spacing) > FAR
    row["far_cm3"] = float((whole & far).sum() * np.prod(image.grid.spacing) / 1000)
    return row


def scores(name: str) -> dict[str, Row]:
    """Scores of all finished results of a configuration, computed once and kept beside them."""
    found = {}
    for patient in patients():
        out = RESULTS / name / patient.name
        kept = out.parent / f"{patient.name}.json"
        if not (out / "run.json").exists():
            continue
        if not kept.exists() or kept.stat().st_mtime < (out / "run.json").stat().st_mtime:
            kept.write_text(json.dumps(score(patient, out)), encoding="utf-8")
        found[patient.name] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def interval(values: npt.ArrayLike, draws: int = 4000) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval over patients."""
    values = np.asarray(values, float)
    rng = np.random.default_rng(0)
    means = rng.choice(values, (draws, len(values))).mean(1)
    return float(values.mean()), *map(float, np.quantile(means, [0.025, 0.975]))


def table(found: Mapping[str, Row]) -> list[str]:
    lines = ["| patient | " + " | ".join(FIGURES) + " | core cm³ | whole cm³ |"]
    lines.append("|" + "---|" * (len(FIGURES) + 3))
    for group in GROUPS:
        rows = [r for r in found.values() if r["group"] == group]
        for r in rows:
            cells = [f"{r[k]:.3g}" for k in FIGURES]
            cells += [f"{r[f'{k}_cm3']:.1f} of {r[f'{k}_reference_cm3']:.1f}" for k in ("core", "whole")]
            lines.append(f"| {r['patient']} | " + " | ".join(cells) + " |")
        if rows:
            lines.append(f"| **{group}, mean of {len(rows)}** | " + _means(rows) + " | | |")
    if found:
        lines.append(f"| **all, mean of {len(found)}** | " + _means(list(found.values())) + " | | |")
    return lines


def _means(rows: Sequence[Row]) -> str:
    cells = []
    for k in FIGURES:
        mean, low, high = interval([r[k] for r in rows])
        cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})" if np.isfinite(mean) else "infinite")
    return " | ".join(cells)


def differences(first: Mapping[str, Row], second: Mapping[str, Row]) -> list[str]:
    """Paired differences, second minus first, over patients that have both."""
    both = [n for n in first if n in second]
    lines = ["| group | patients | " + " | ".join(FIGURES) + " |", "|" + "---|" * (len(FIGURES) + 2)]
    for group in (*GROUPS, "all"):
        names = [n for n in both if group in ("all", first[n]["group"])]
        if not names:
            continue
        cells = []
        for k in FIGURES:
            change = np.array([second[n][k] for n in names], float) - [first[n][k] for n in names]
            mean, low, high = interval(change[np.isfinite(change)])
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append(f"| {group} | {len(names)} | " + " | ".join(cells) + " |")
    return lines


def choose(candidates: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Each patient scored with the configuration that is best, in core plus whole Dice, on all others."""
    common = sorted(set.intersection(*(set(rows) for rows in candidates.values())))
    picked: dict[str, Row] = {}
    counts = dict.fromkeys(candidates, 0)
    for left_out in common:
        others = [n for n in common if n != left_out]

        def merit(name: str, others: list[str] = others) -> float:
            return float(
                np.mean([candidates[name][n][k] for n in others for k in ("core_dice", "whole_dice")])
            )

        best = max(candidates, key=merit)
        counts[best] += 1
        picked[left_out] = candidates[best][left_out]
    return [f"Chosen: {', '.join(f'{n} for {c} patients' for n, c in counts.items())}", "", *table(picked)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("run", "report", "compare", "choose"))
    parser.add_argument("names", nargs="+")
    parser.add_argument("--config", type=Path, help="settings, TOML")
    parser.add_argument("--flags", default="", help="further flags of tumoar segment")
    parser.add_argument("--contrasts", default="t1c,flair,t2,t1")
    parser.add_argument("--workers", type=int, default=2, help="patients at a time, one thread each")
    parser.add_argument("--patients", help="only these, separated by commas")
    parser.add_argument("--write", type=Path, help="also write the report to this page")
    options = parser.parse_args()
    if options.verb == "run":
        flags = [*shlex.split(options.flags), "--threads", "1"]
        flags += ["--config", str(options.config)] if options.config else []
        chosen = [p for p in patients() if not options.patients or p.name in options.patients.split(",")]
        with ThreadPoolExecutor(options.workers) as pool:
            for patient in chosen:
                out = RESULTS / options.names[0] / patient.name
                pool.submit(run, patient, out, options.contrasts.split(","), flags)
    found = {name: scores(name) for name in options.names}
    if options.verb == "compare":
        lines = differences(*(found[name] for name in options.names[:2]))
    elif options.verb == "choose":
        lines = choose(found)
    else:
        lines = table(found[options.names[0]])
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join([*PAGE, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
