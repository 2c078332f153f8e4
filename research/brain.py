"""The model with all structures of the brain, beside the default one, on two heads that trained neither.

python research/brain.py fit 10 20                # the atlas fitted to the label maps
python research/brain.py run 10:brain 10:default …   # simulated scans segmented; continues
python research/brain.py page                     # → research/results/brain.md
python research/brain.py --quick                  # one short fit

Scans are those of the independent simulator: T1, T1c, T2 and FLAIR at 1 mm with a tumor. The truth are the
labels of the head, moved by the tumor, with organs as planners draw them (docs/organs.md).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
from head_cases import DATA, PACKAGE, PROJECT

from tumoar.api import load_result
from tumoar.geometry.image import Grid
from tumoar.geometry.resample import resample
from tumoar.io.models import SHIPPED
from tumoar.io.nifti import write_nifti
from tumoar.io.store import load_atlas
from tumoar.model.atlas import Atlas, smooth
from tumoar.numerics import tetra
from tumoar.numerics.tetra_raster import rasterize
from tumoar.result.scores import dice
from tumoar.simulate.independent import Anatomy, Scan, draw_patient, motion, scan
from tumoar.train.align import Alignment
from tumoar.train.atlas import AtlasSettings, fit
from tumoar.train.clinical import clinical_rules, define_organs, relabel
from tumoar.train.head_table import default_heads, refine_heads
from tumoar.train.prepare import prepare_head
from tumoar.train.refine import to_wholes
from tumoar.vocabulary.labels import default_labels
from tumoar.vocabulary.parts import brain_labels, brain_parts

Mask = npt.NDArray[np.bool_]

BUILD = PROJECT / "build" / "brain"
PAGE = PROJECT / "research" / "results" / "brain.md"
FINE, COARSE = brain_labels(), default_labels()
CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
CORE_ML = 18.0
FITS = ((4.0, 30), (2.0, 30), (0.0, 40), (0.0, 40))
"""As in research/atlas.py: blur of the probabilities in mm, and evaluations."""


def read_head(number: str) -> tuple[npt.NDArray[np.int32], Grid]:
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / f"head_{number}.nii.gz"))
    source = np.asarray(image.dataobj).astype(np.int32)
    return source, Grid(source.shape, image.affine)


def prepared(number: str) -> npt.NDArray[np.uint8]:
    """Label map of a head with all structures of the brain."""
    path = BUILD / f"head_{number}.nii.gz"
    if not path.exists():
        source, grid = read_head(number)
        heads = refine_heads(default_heads(), brain_parts())
        source = relabel(source, grid, heads, clinical_rules(), name=number)
        BUILD.mkdir(parents=True, exist_ok=True)
        write_nifti(path, prepare_head(source, grid, heads, FINE, name=number), grid)
    return np.asarray(nib.load(path).dataobj).astype(np.uint8)


# ---- fits to label maps ------------------------------------------------------------------------------------


def fit_labels(number: str, fits: tuple[tuple[float, int], ...] = FITS) -> dict[str, Any]:
    """Dice of every structure, and of the structures of the default atlas, after a fit to a head's labels."""
    atlas = load_atlas(PACKAGE / "data" / SHIPPED["brain"][0])
    assert f"head_{number}.nii.gz" not in atlas.provenance["heads"]
    truth = Alignment.of_card(atlas.provenance, atlas.labels).place(prepared(number), FINE)
    start = time.process_time()
    guess, folded = fit_atlas(atlas, truth, fits)
    wholes = to_wholes(COARSE, FINE)
    return {
        "dice": dices(guess, truth, [s.name for s in trained(FINE)]),
        "merged": dices(wholes[guess], wholes[truth], [s.name for s in trained(COARSE)]),
        "cpu": round(time.process_time() - start, 1),
        "folded": folded,
    }


def trained(labels) -> list:
    return [s for s in labels.structures if s.trained]


def fit_atlas(
    atlas: Atlas, truth: npt.NDArray[np.uint8], fits: tuple[tuple[float, int], ...]
) -> tuple[npt.NDArray[np.uint8], int]:
    """The most probable labels after the fit, and the number of folded tetrahedra."""
    columns = [s.trained for s in atlas.labels.structures]
    reference, nodes = atlas.nodes + (np.array(truth.shape) - 1) / 2, None
    for sigma, evaluations in fits:
        alpha = (smooth(atlas, sigma) if sigma else atlas).alpha[:, columns]
        alpha = np.ascontiguousarray(alpha / alpha.sum(1, keepdims=True))
        nodes = fit(reference, atlas.tetrahedra, alpha, truth, AtlasSettings(), evaluations, nodes)
    guess = rasterize(nodes, atlas.tetrahedra, alpha, truth.shape).argmax(-1).astype(np.uint8)
    return guess, int((tetra.volumes(nodes, atlas.tetrahedra) <= 0).sum())


def dices(guess: npt.NDArray, truth: npt.NDArray, names: list[str]) -> dict[str, float]:
    pairs = {name: (guess == k, truth == k) for k, name in enumerate(names) if k}
    return {name: round(float(2 * (a & b).sum() / (a.sum() + b.sum())), 4) for name, (a, b) in pairs.items()}


# ---- runs on simulated scans -------------------------------------------------------------------------------


def simulate(number: str, folder: Path) -> None:
    """Write the images of a scan, and its truth."""
    source, grid = read_head(number)
    found = define_organs(source, grid, default_heads(), clinical_rules(), name=number)
    fine = prepared(number)
    parts = {s.name: fine == s.index for s in trained(FINE) if s.part_of}
    anatomy = Anatomy(found.source, grid, {**found.organs, **parts}, found.globes, found.courses)
    rng_patient, rng_scan = np.random.default_rng([46, int(number)]).spawn(2)
    patient = draw_patient(anatomy, CORE_ML, rng_patient)
    scans = [Scan(c, thickness=1.0, turn=(0.0, 0.0, 0.0)) for c in CONTRASTS]
    folder.mkdir(parents=True, exist_ok=True)
    for contrast, made in scan(patient, scans, rng_scan).items():
        write_nifti(folder / f"{contrast}.nii.gz", made.data, made.grid)
    np.savez_compressed(
        folder / "truth.npz",
        affine=patient.grid.affine,
        to_head=motion(patient.head.grid, scans[0]),
        z=patient.tumor.z,
        y=patient.tumor.y,
        **dict(patient.organs),
    )


def run(name: str) -> None:
    """Simulate a head and segment it with a model, unless both are done."""
    number, model = name.split(":")
    folder = BUILD / number
    out = folder / model
    if not (folder / "truth.npz").exists():
        simulate(number, folder)
    if (out / "run.json").exists():
        return
    given = [p for c in CONTRASTS for p in (f"--{c.lower()}", str(folder / f"{c}.nii.gz"))]
    command = [sys.executable, "-m", "tumoar", "segment", *given, "-o", str(out), "-q", "--threads", "1"]
    command += [] if model == "default" else ["--model", model]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode in (0, 13):
        (folder / f"{model}.json").write_text(json.dumps({"cpu": round(seconds)}), encoding="utf-8")
    print(name, done.returncode, round(seconds), flush=True)


def score(number: str, model: str) -> dict[str, dict[str, float]] | None:
    """Dice and volumes of every structure of a run."""
    folder = BUILD / number
    if not (folder / model / "run.json").exists():
        return None
    result, truth = load_result(folder / model), np.load(folder / "truth.npz")
    names = {o.name: [o.name] if o.name in truth else list(o.structures) for o in result.table.organs}
    names["GTV"] = ["y"]
    cubic, rows = result.grid.voxel_volume / 1000, {}
    masks = {name: np.asarray(result.mask(name)) > 0 for name in names}
    for name, parts in names.items():
        if parts and all(part in truth for part in parts):
            rows[name] = compare(masks[name], true_mask(truth, parts, result.grid), cubic)
    whole = masks["GTV"] | masks["Edema"]
    rows["whole tumor"] = compare(whole, true_mask(truth, ["z"], result.grid), cubic)
    return rows


def true_mask(truth: Mapping[str, npt.NDArray], parts: list[str], onto: Grid) -> Mask:
    """A union of structures of the truth on the voxels of a result."""
    mask = np.any([truth[part] > 0 for part in parts], 0).astype(np.float32)
    return np.asarray(resample(mask, Grid(mask.shape, truth["affine"]), onto, truth["to_head"]) > 0.5)


def compare(mask: Mask, true: Mask, cubic: float) -> dict[str, float]:
    return {"dice": dice(mask, true), "ml": float(mask.sum()) * cubic, "true": float(true.sum()) * cubic}


# ---- page --------------------------------------------------------------------------------------------------


def page() -> dict[str, Any]:
    lines = HEADER.splitlines()
    fits = {p.stem[4:]: json.loads(p.read_text("utf-8")) for p in sorted(BUILD.glob("fit_*.json"))}
    if fits:
        lines += ["", "## Fitted to label maps", "", FITTED, ""]
        for what, title in (("dice", "structure"), ("merged", "structure, parts merged")):
            names = dict.fromkeys(name for f in fits.values() for name in f[what])
            rows = {name: [cell(f[what].get(name)) for f in fits.values()] for name in names}
            lines += [*table([title, *(f"head {n}" for n in fits)], rows), ""]
        lines += [f"Folded tetrahedra: {sum(f['folded'] for f in fits.values())}."]
    scores = {
        (n, m): found
        for n in sorted(p.parent.name for p in BUILD.glob("*/truth.npz"))
        for m in SHIPPED
        if (found := score(n, m)) is not None
    }
    if scores:
        lines += ["", "## Default runs on simulated scans", "", RUNS, ""]
        keys_of_runs = list(scores)
        lines += table(
            ["structure", *(f"{m}, head {n}" for n, m in keys_of_runs)],
            {
                name: [cell(scores[key].get(name, {}).get("dice")) for key in keys_of_runs]
                for name in dict.fromkeys(name for found in scores.values() for name in found)
            },
        )
        cpu = {
            key: json.loads(path.read_text("utf-8"))["cpu"]
            for key in keys_of_runs
            if (path := BUILD / key[0] / f"{key[1]}.json").exists()
        }
        lines += ["", "Seconds of one core, of every kind: "]
        lines[-1] += "; ".join(f"head {n}, {m} {s}" for (n, m), s in cpu.items()) + "."
    else:
        lines += ["", "No simulated scan was segmented (`python research/brain.py run`)."]
    PAGE.write_text("\n".join([*lines, "", NOT_MEASURED]) + "\n", encoding="utf-8")
    return {f"{n}, {m}": {k: round(v["dice"], 3) for k, v in s.items()} for (n, m), s in scores.items()}


def table(head: list[str], rows: Mapping[str, list[str]]) -> list[str]:
    body = [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *body]


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


HEADER = """\
# The model with all structures of the brain

Written by `python research/brain.py page`. Heads 10 and 20 trained neither atlas. Labels are automatic."""
FITTED = """\
Dice of the most probable label after a fit from the affine alignment, coarse to fine, as in
[atlas.md](atlas.md), whose first section has the same figures of the default atlas."""
RUNS = """\
Dice of `tumoar segment` with T1, T1c, T2 and FLAIR at 1 mm from the independent simulator, one scan of each
head with a tumor, default settings, one thread. GTV is the core. What is drawn of structures under tumor is
compared with where the simulator has moved them."""
NOT_MEASURED = """\
Not measured: images of patients, other heads, and SAMSEG on the same scans."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("fit", "run", "page"), nargs="?", default="page")
    parser.add_argument("names", nargs="*", help="HEAD, or HEAD:MODEL")
    parser.add_argument("--quick", action="store_true", help="one short fit, and no page")
    options = parser.parse_args()
    if options.quick:
        print(json.dumps(fit_labels("10", ((4.0, 4),))))
        return
    for name in options.names:
        if options.verb == "run":
            run(name)
        else:
            BUILD.mkdir(parents=True, exist_ok=True)
            found = fit_labels(name)
            (BUILD / f"fit_{name}.json").write_text(json.dumps(found), encoding="utf-8")
            print(name, json.dumps(found), flush=True)
    if options.verb == "page":
        print(json.dumps(page()))


if __name__ == "__main__":
    main()
