"""Organs of default runs on heads from the independent simulator.

python research/organs.py run 10:1 10:3 10:1:again 10:1:ct …   # HEAD:MILLIMETERS[:WORD …]; continues
python research/organs.py page                                 # → research/results/organs.md
python research/organs.py page ct                              # → research/results/organs_ct.md

Heads 10 and 20 did not train the atlas of the package. Each head has a tumor and T1c, T2 and FLAIR in axial
slices. The words:

again   the same head, turned by up to 15°, with other noise, coils and texture
ct      a CT alone, of the head turned by up to 15°, without tumor (--no-tumor)
ct+mr   that CT, and T1c, T2 and FLAIR in slices of 1 mm; the result is on the voxels of the CT
metal   with ct: metal in the teeth

The truth are clinical organs (docs/organs.md) before any scan.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt
from head_cases import DATA, PROJECT
from scipy import ndimage as ndi

from tumoar.api import StoredResult, load_result
from tumoar.geometry.image import Grid, Image
from tumoar.geometry.resample import resample
from tumoar.io.nifti import write_nifti
from tumoar.result.scores import compare, dice
from tumoar.simulate.independent import Anatomy, Patient, Scan, draw_patient, motion, scan
from tumoar.train.clinical import clinical_rules, define_organs
from tumoar.train.head_table import default_heads

Mask = npt.NDArray[np.bool_]

BUILD = PROJECT / "build" / "organs"
PAGE = PROJECT / "research" / "results" / "organs.md"
CT_PAGE = PAGE.with_name("organs_ct.md")
CONTRASTS = ("T1c", "T2", "FLAIR")
MOST = 15.0
"""Degrees by which a head is turned, at most."""
CORE = (8.0, 30.0)
"""Range of the volume of the core in ml."""


@dataclass(frozen=True)
class Run:
    """A run by its name: HEAD:MILLIMETERS[:WORD …]."""

    name: str

    @property
    def head(self) -> str:
        """Name of the label map."""
        return self.name.split(":")[0]

    @property
    def thickness(self) -> float:
        """Millimeters from slice to slice of the image that defines the result."""
        return float(self.name.split(":")[1])

    @property
    def words(self) -> tuple[str, ...]:
        """What is special about the run."""
        return tuple(self.name.split(":")[2:])

    @property
    def has_ct(self) -> bool:
        """Whether a CT is given."""
        return bool({"ct", "ct+mr"} & set(self.words))

    @property
    def folder(self) -> Path:
        """Images and truth; runs with a CT alone and with MR share them."""
        return BUILD / self.name.replace(":", "-").replace("+mr", "")

    @property
    def result(self) -> Path:
        """The folder that `tumoar segment` writes."""
        return self.folder / ("result+mr" if "ct+mr" in self.words else "result")

    @property
    def arguments(self) -> list[str]:
        """What `tumoar segment` is asked for."""
        used = (*(["CT"] if self.has_ct else []), *(() if "ct" in self.words else CONTRASTS))
        images = [part for c in used for part in (f"--{c.lower()}", str(self.folder / f"{c}.nii.gz"))]
        return [*images, *(["--no-tumor"] if "ct" in self.words else [])]

    @property
    def title(self) -> str:
        """Heading of its table."""
        text = f"Head {self.head}, {self.thickness:g} mm"
        if self.has_ct:
            text = f"Head {self.head}, CT in slices of {self.thickness:g} mm"
            text += " with T1c, T2 and FLAIR" if "ct+mr" in self.words else " alone"
        return text + (", metal in the teeth" if "metal" in self.words else "")


def make(name: str) -> None:
    """Simulate and segment one scan, unless both are done."""
    asked = Run(name)
    if not (asked.folder / "truth.npz").exists():
        simulate(asked)
    if not (asked.result / "run.json").exists():
        begun = ["--resume"] if asked.result.with_name(f".{asked.result.name}.checkpoints").exists() else []
        command = [sys.executable, "-m", "tumoar", "segment", *asked.arguments]
        done = subprocess.run([*command, "-o", str(asked.result), "-q", "--threads", "1", *begun])
        print(name, done.returncode, flush=True)


@cache
def draw_head(head: str) -> Patient:
    """A head with its tumor."""
    rng_tumor, rng_patient = np.random.default_rng([35, int(head)]).spawn(2)
    image = nib.as_closest_canonical(nib.load(DATA / "heads" / f"head_{head}.nii.gz"))
    source = np.asarray(image.dataobj).astype(np.int32)
    grid = Grid(source.shape, image.affine)
    found = define_organs(source, grid, default_heads(), clinical_rules(), name=head)
    anatomy = Anatomy(found.source, grid, found.organs, found.globes, found.courses)
    return draw_patient(anatomy, float(rng_tumor.uniform(*CORE)), rng_patient)


def simulate(asked: Run) -> None:
    """Write the images of a scan, and its truth in the space of the image that defines the result."""
    patient = draw_head(asked.head)
    first, metal = "CT" if asked.has_ct else CONTRASTS[0], "metal" in asked.words
    how = Scan(first, thickness=asked.thickness, metal=metal)
    stream = 2 if asked.has_ct else int("again" in asked.words)
    rng_turn, rng_scan = seeded(asked.head, asked.thickness, stream).spawn(2)
    direction = rng_turn.normal(size=3)
    turn = direction / np.linalg.norm(direction) * rng_turn.uniform(8, MOST) * bool(stream)
    how = replace(how, turn=(float(turn[0]), float(turn[1]), float(turn[2])))
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.has_ct:
        write(scan(patient, [how], rng_scan), asked.folder)
        if not metal:
            as_alone = seeded(asked.head, 1, 0).spawn(2)[1]  # the same images as those of the run without CT
            write(scan(patient, [Scan(c) for c in CONTRASTS], as_alone), asked.folder)
    else:
        write(scan(patient, [replace(how, contrast=c) for c in CONTRASTS], rng_scan), asked.folder)
    np.savez_compressed(
        asked.folder / "truth.npz",
        affine=patient.grid.affine,
        to_head=motion(patient.head.grid, how),
        turn=turn,
        z=patient.tumor.z,
        y=patient.tumor.y,
        **dict(patient.organs),
    )


def seeded(head: str, thickness: float, stream: int) -> np.random.Generator:
    return np.random.default_rng([35, int(head), round(10 * thickness), stream])


def write(images: Mapping[str, Image], folder: Path) -> None:
    for contrast, made in images.items():
        write_nifti(folder / f"{contrast}.nii.gz", made.data, made.grid)


def load(name: str) -> tuple[StoredResult, Mapping[str, npt.NDArray]] | None:
    asked = Run(name)
    if not (asked.result / "run.json").exists():
        return None
    return load_result(asked.result), dict(np.load(asked.folder / "truth.npz"))


def true_mask(name: str, truth: Mapping[str, npt.NDArray], result: StoredResult) -> Mask:
    """An organ, or z or y, of the truth on the voxels of a result."""
    grid = Grid(truth[name].shape, truth["affine"])
    return resample(truth[name].astype(np.float32), grid, result.grid, truth["to_head"]) > 0.5


def score(name: str) -> dict[str, dict[str, float]] | None:
    found = load(name)
    if found is None:
        return None
    result, truth = found
    rows = {}
    for organ in result.table.organs:
        what = {"GTV": "y"}.get(organ.name, organ.name)
        if what in truth:
            mask, true = np.asarray(result.mask(organ.name)) > 0, true_mask(what, truth, result)
            scores = compare(mask, true, result.grid.spacing)
            cubic = result.grid.voxel_volume / 1000
            rows[organ.name] = {
                "dice": scores.dice,
                "hd95": scores.hausdorff95,
                "parts": int(ndi.label(mask, np.ones((3, 3, 3)))[1]),
                "ml": float(mask.sum()) * cubic,
                "true": float(true.sum()) * cubic,
            }
    if not result.table.has_tumor:
        return rows
    whole = np.asarray(result.mask("Edema")) | np.asarray(result.mask("GTV"))
    true = true_mask("z", truth, result)
    scores = compare(whole > 0, true, result.grid.spacing)
    cubic = result.grid.voxel_volume / 1000
    rows["whole tumor"] = {
        "dice": scores.dice,
        "hd95": scores.hausdorff95,
        "parts": int(ndi.label(whole, np.ones((3, 3, 3)))[1]),
        "ml": float(whole.sum()) * cubic,
        "true": float(true.sum()) * cubic,
    }
    return rows


def agreement(name: str) -> dict[str, float] | None:
    """Dice of the organs of a scan and of its repetition, in the space of the first."""
    first, second = load(name), load(f"{name}:again")
    if first is None or second is None:
        return None
    (a, truth_a), (b, truth_b) = first, second
    to_b = np.linalg.inv(truth_b["to_head"]) @ truth_a["to_head"]
    rows = {}
    for organ in a.table.organs:
        if organ.structures:
            there = np.asarray(b.mask(organ.name)).astype(np.float32)
            rows[organ.name] = dice(
                np.asarray(a.mask(organ.name)) > 0, resample(there, b.grid, a.grid, to_b) > 0.5
            )
    return rows


def page(*, ct: bool) -> None:
    """Write the page of runs with a CT, or of those without."""
    found = sorted(p.parent for p in BUILD.glob("*/*/run.json"))
    runs = sorted((run for run in map(run_of, found) if run.has_ct == ct), key=lambda run: run.name)
    lines = (CT_HEADER if ct else HEADER).splitlines()
    lines.append("")
    for run in runs:
        turn = np.load(run.folder / "truth.npz")["turn"]
        again = f", again, turned by {np.linalg.norm(turn):.0f}°" if "again" in run.words else ""
        lines += [f"## {run.title}{again}", ""]
        lines += [
            "| structure | Dice | HD95, mm | parts | outlined, cm³ | truth, cm³ |",
            "|---|---|---|---|---|---|",
        ]
        for organ, row in (score(run.name) or {}).items():
            lines.append(
                f"| {organ} | {row['dice']:.3f} | {row['hd95']:.1f} | {row['parts']} | {row['ml']:.2f} | "
                f"{row['true']:.2f} |"
            )
        lines.append("")
    for run in runs:
        same = agreement(run.name)
        if same is not None:
            lines += [f"## {run.title}: agreement of two scans", ""]
            lines += [
                "| structure | Dice |",
                "|---|---|",
                *(f"| {o} | {v:.3f} |" for o, v in same.items()),
                "",
            ]
    (CT_PAGE if ct else PAGE).write_text("\n".join(lines), encoding="utf-8")
    dices = {run.name: {o: round(r["dice"], 3) for o, r in (score(run.name) or {}).items()} for run in runs}
    print(json.dumps(dices))


def run_of(result: Path) -> Run:
    """The run that wrote a result."""
    name = result.parent.name.replace("-", ":")
    return Run(name.replace(":ct", ":ct+mr") if result.name.endswith("+mr") else name)


HEADER = """\
# Organs on heads from the independent simulator

Written by `python research/organs.py page`. Heads 10 and 20 did not train the atlas of the package. Default
runs with T1c, T2 and FLAIR in axial slices of the given thickness; each head has a tumor. The simulator
shares nothing with the model but the label maps: other tissues, sequences, slice profiles, coils, lids, fat.
The truth are organs as a planner draws them ([definitions](../../docs/organs.md)), which the atlas of the
package means as well. GTV is the core; Brain has no truth here.
"""


CT_HEADER = """\
# Organs on CT, on heads from the independent simulator

Written by `python research/organs.py page ct`. Heads 10 and 20 did not train the atlas of the package.
Default runs on a CT of the head turned by up to 15°, alone (`--no-tumor`) or with T1c, T2 and FLAIR in
slices of 1 mm, which are registered to it. Each head has a tumor, also where none is asked for. The truth
are organs as a planner draws them ([definitions](../../docs/organs.md)), on the voxels of the CT. Brain has
no truth here; hippocampi on CT alone are what the atlas expects, which a note says.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("run", "page"))
    parser.add_argument("names", nargs="*", help="HEAD:MILLIMETERS[:WORD …]; of a page: ct")
    options = parser.parse_args()
    if options.verb == "page":
        page(ct="ct" in options.names)
        return
    for name in options.names:
        make(name)


if __name__ == "__main__":
    main()
