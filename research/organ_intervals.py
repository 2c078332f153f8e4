"""Organs of simulated heads: run, learn and check their prediction intervals (the `heads` of `intervals.py`).

Heads are label maps with a tumor blob that displaces the brain, each with another tumor and other scans. Ten
of the twelve trained the shipped atlas: they are segmented with an atlas of the other nine
(`held_out_atlases.py`), heads 10 and 20 with the shipped one. `drawn-SEED` is the patient of the demo, drawn
from the shipped model.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dosimetry import plan_dose
from head_cases import LABELS, PROJECT, around_head, read_head
from held_out_atlases import model_of

from tumoar.api import StoredResult, load_result
from tumoar.app.calibrate import Compared, calibrate, compare_organs, conditions_of
from tumoar.geometry.image import Image
from tumoar.io.calibration import read_calibration, write_calibration
from tumoar.io.models import default_model
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.model.calibration import Conditions, digest_conditions
from tumoar.model.conformal import SHARES, least_cases
from tumoar.model.expert import Learned, learn
from tumoar.result.masks import rearrange
from tumoar.result.prediction import Prediction, draw_predictions, organ_border
from tumoar.result.scores import dice
from tumoar.simulate import Acquisition, Truth, draw_blob, draw_patient, draw_place, simulate
from tumoar.vocabulary.config import Config

HEADS = PROJECT / "build" / "intervals"
HELD_OUT = ("10", "20")
"""Heads that did not train the shipped atlas."""
CASES = "simulated held-out heads"
CONTRASTS = ("T1", "T1c", "T2", "FLAIR")
TALLEST = 220.0  # mm of a simulated head, from the crown down
CORE_ML = (5.0, 40.0)
NOISE, BIAS = (0.02, 0.05), (0.15, 0.4)
SLICES = (1.0, 2.0, 3.0)  # mm, of T2 and FLAIR
SWEEPS = (20, 30)
"""Burn-in and samples of a simulated head."""
DRAWN = 50
"""Structures that are drawn for the band of a dose."""
HOT = 30
"""Voxels of 1 mm³ that receive at least D0.03cc."""
SECTION = "## Organs"
DEMO = "### Patients of the demo"
DEFAULT = (Config().gibbs.burn_in, Config().gibbs.samples)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Head:
    """A segmented head compared with the truth: borders and true masks of its organs, and dose of a plan."""

    name: str
    compared: Compared
    predicted: Mapping[str, Prediction]
    true: Mapping[str, Mask]
    dose: npt.NDArray[np.float32]


# ---- run ---------------------------------------------------------------------------------------------------


def run_head(name: str, sweeps: Sequence[int] | None = None) -> None:
    """Simulate a head and segment it, unless both are done.

    `name` is the number of a label map, such as "10", or "drawn-3" for the patient of the demo with seed 3.
    """
    sweeps = SWEEPS if sweeps is None else sweeps
    out = result_of(name, sweeps)
    folder, simulated = out.parent, simulated_of(name)
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
        given += ["--model", str(model_of(name))] if name.isdigit() and name not in HELD_OUT else []
        begun = ["--resume"] if (folder / ".result.checkpoints").exists() else []
        settings = folder / "settings.toml"
        settings.write_text("[gibbs]\nburn_in = {}\nsamples = {}\n".format(*sweeps), encoding="utf-8")
        command = [sys.executable, "-m", "tumoar", "segment", *given, "-o", str(out), "-q", "--threads", "1"]
        done = subprocess.run([*command, "--config", str(settings), *begun])
        print(folder, done.returncode, flush=True)


def result_of(name: str, sweeps: Sequence[int]) -> Path:
    """The folder of a result."""
    return simulated_of(name).parent / "x".join(map(str, sweeps)) / "result"


def simulated_of(name: str) -> Path:
    """The folder of images and truth."""
    return HEADS / (name if name.startswith("drawn") else f"head-{name}") / "simulated"


def simulate_head(name: str) -> tuple[dict[str, Image], Truth]:
    """Images and truth: a label map with a tumor blob, or the patient of the demo."""
    if name.startswith("drawn"):
        scans = [Acquisition(c) for c in CONTRASTS]
        return draw_patient(default_model(), scans, int(name.partition("-")[2]))
    rng_tumor, rng_scan, rng_how = np.random.default_rng([34, int(name)]).spawn(3)
    label_map, source, grid = around_head(*read_head(name, HEADS), margin=10.0, tallest=TALLEST)
    blob = draw_blob(rng_tumor, core_ml=float(rng_tumor.uniform(*CORE_ML)), spacing=1.0)
    tumor = draw_place(blob, label_map, LABELS, rng_tumor)
    noise, bias, thick = rng_how.uniform(*NOISE), rng_how.uniform(*BIAS), float(rng_how.choice(SLICES))
    scans = [
        Acquisition(c, (1.0, 1.0, 1.0 if c.startswith("T1") else thick), noise=noise, bias=bias)
        for c in CONTRASTS
    ]
    return simulate(label_map, grid, tumor, scans, LABELS, rng_scan, source=source)


# ---- compare -----------------------------------------------------------------------------------------------


def finished(kind: str, sweeps: Sequence[int] = SWEEPS) -> list[str]:
    """Names of heads ("head") or drawn patients ("drawn") with a finished result."""
    names = [p.name.removeprefix("head-") for p in sorted(HEADS.glob(f"{kind}-*"))]
    return [n for n in names if (result_of(n, sweeps) / "run.json").exists()]


def true_organs(name: str, result: StoredResult) -> dict[str, Mask]:
    """Organs of a simulated head on the voxels of its result, whether or not tumor covers them."""
    truth, table = read_nifti(simulated_of(name) / "truth_labels.nii.gz"), result.table
    labels = rearrange(np.asarray(truth.data), truth.grid, result.grid)
    assert labels is not None, f"{name}: another grid"
    return {
        organ.name: np.isin(labels, [table.indices[table.l(s)] for s in organ.structures])
        for organ in table.organs
        if not organ.tumor
    }


@cache
def compare(name: str, sweeps: Sequence[int] = SWEEPS) -> Compared:
    """Compare the organs of a result with the truth, under the conditions of the shipped model."""
    result = load_result(result_of(name, sweeps))
    compared = compare_organs(result, true_organs(name, result), np.random.default_rng(0))
    return replace(compared, conditions=require_default(result).organs)


@cache
def load(name: str) -> Head:
    """What the check needs of a head."""
    result, compared = load_result(result_of(name, SWEEPS)), compare(name)
    true, nothing = true_organs(name, result), Learned((), 0.0, 0.0, 1.0)
    i, j, k = map(float, result.grid.spacing)
    predicted = {}
    for organ in compared.observed:
        outline = result.mask(organ)
        votes = np.asarray(result.probability(organ), np.float32)
        predicted[organ] = Prediction(organ_border(outline, votes, (i, j, k)), nothing, "", outline.shape)
    tumor = read_nifti(simulated_of(name) / "truth_tumor.nii.gz")
    core = rearrange(np.asarray(tumor.data) > 1, tumor.grid, result.grid)
    assert core is not None, f"{name}: another grid"
    return Head(name, compared, predicted, true, plan_dose(core, true["Brain"], result.grid).data)


def require_default(result: StoredResult) -> Conditions:
    """Conditions of the shipped model, for results with default settings and the atlas of any heads."""
    settings = Config().model_dump(mode="json")
    own = digest_conditions(result.manifest["model"], settings, CONTRASTS)
    assert conditions_of(result.manifest).organs == own.organs, "other settings or contrasts"
    return digest_conditions(default_model().sha256, settings, CONTRASTS)


def fit(to: Path) -> None:
    """Learn from all finished heads, and replace the organs of a file."""
    found = [compare(name) for name in finished("head")]
    for name, compared in zip(finished("head"), found):
        print(name, {n: round(o.displacement, 2) for n, o in compared.observed.items()}, flush=True)
    new = calibrate(found, CASES)
    kept = [e for e in read_calibration(to).entries if e.cases != CASES] if to.exists() else []
    write_calibration(to, replace(new, entries=(*kept, *new.entries)))


# ---- check -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One organ of one head: volumes in cm³, D0.03cc in Gy, and their intervals by share.

    The brain has no dose: it contains the target.
    """

    head: str
    organ: str
    outlined: float
    volume: float
    volumes: Mapping[float, tuple[float, float]]
    dose: float
    doses: Mapping[float, tuple[float, float]]


def predict(head: Head, organ: str, learned: Learned) -> Row:
    """Intervals of an organ with the numbers of others."""
    predicted = replace(head.predicted[organ], learned=learned)
    border, true = predicted.border, head.true[organ]
    doses = {}
    if organ != "Brain":
        drawn = draw_predictions({organ: predicted}, DRAWN, np.random.default_rng(0))
        hot = [hottest(head.dose, masks[organ]) for masks in drawn]
        own = hottest(head.dose[border.box], border.levels < 0)
        bounds = {s: np.quantile(hot, [(1 - s) / 2, (1 + s) / 2]) for s in SHARES}
        doses = {s: (min(float(low), own), max(float(high), own)) for s, (low, high) in bounds.items()}
    return Row(
        head.name,
        organ,
        border.volume(0),
        float(true.sum()) * border.voxel,
        {s: predicted.volumes(s) for s in SHARES},
        hottest(head.dose, true),
        doses,
    )


def hottest(dose: npt.NDArray[np.float32], mask: Mask) -> float:
    """D0.03cc on voxels of 1 mm³, Gy."""
    values = np.sort(dose[mask])
    return float(values[-min(HOT, len(values))]) if len(values) else 0.0


def leave_one_out(heads: Sequence[Head]) -> list[Row]:
    """Organs of each head by the numbers of the others, where they are enough."""
    rows = []
    for head in heads:
        for organ in head.predicted:
            others = [h.compared.observed[organ] for h in heads if h is not head and organ in h.predicted]
            if len(others) >= least_cases(max(SHARES)):
                rows.append(predict(head, organ, learn(others)))
    return rows


def predict_drawn(drawn: Sequence[Head], heads: Sequence[Head]) -> Iterator[Row]:
    """Organs of drawn patients by the numbers of all held-out heads."""
    for organ in dict.fromkeys(o for h in heads for o in h.predicted):
        learned = learn([h.compared.observed[organ] for h in heads if organ in h.predicted])
        yield from (predict(h, organ, learned) for h in drawn if organ in h.predicted)


def covers(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def describe(rows: Sequence[Row]) -> list[str]:
    """Coverage and median width by organ, and over all."""
    lines = [
        "| organ | heads | volume: 50 % covers | 90 % covers | width of 90 % | D0.03cc: 50 % covers | 90 % "
        "covers | width of 90 %, Gy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = {o: [r for r in rows if r.organ == o] for o in dict.fromkeys(r.organ for r in rows)}
    for name, group in {**groups, "all": list(rows)}.items():
        volume = [np.mean([covers(r.volumes[s], r.volume) for r in group]) for s in SHARES]
        width = np.median([np.diff(r.volumes[max(SHARES)])[0] / r.outlined for r in group])
        cells = [*(f"{100 * v:.0f} %" for v in volume), f"{100 * width:.0f} %"]
        if near := [r for r in group if r.doses]:
            dose = [np.mean([covers(r.doses[s], r.dose) for r in near]) for s in SHARES]
            gray = np.median([np.diff(r.doses[max(SHARES)])[0] for r in near])
            cells += [*(f"{100 * v:.0f} %" for v in dose), f"{gray:.2f}"]
        cells += [""] * (6 - len(cells))
        lines.append(f"| {name} | {len(group)} | " + " | ".join(cells) + " |")
    return lines


def describe_displacements(heads: Sequence[Head], drawn: Sequence[Head]) -> list[str]:
    """How far the truth lies from the outline: held-out heads, and patients drawn from the model."""
    lines = [
        "| organ | held-out heads | median, mm | range, mm | drawn patients | median, mm | range, mm |",
        "|---|---|---|---|---|---|---|",
    ]
    for organ in dict.fromkeys(o for h in (*heads, *drawn) for o in h.predicted):
        cells = [organ]
        for group in (heads, drawn):
            a = [h.compared.observed[organ].displacement for h in group if organ in h.predicted]
            cells += [str(len(a))]
            cells += [f"{np.median(a):+.2f}", f"{min(a):+.2f} to {max(a):+.2f}"] if a else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def describe_sweeps(names: Sequence[str], sweeps: Sequence[int]) -> list[str]:
    """Outlines of a head after other numbers of sweeps."""
    lines = ["| head | organ | Dice of the two outlines | displacements, mm |", "|---|---|---|---|"]
    for name in names:
        few, many = compare(name), compare(name, tuple(sweeps))
        results = [load_result(result_of(name, s)) for s in (SWEEPS, sweeps)]
        for organ in few.observed:
            overlap = dice(*(r.mask(organ) for r in results))
            a, b = (c.observed[organ].displacement for c in (few, many))
            lines.append(f"| {name} | {organ} | {overlap:.3f} | {a:+.2f}, {b:+.2f} |")
    return lines


def section(page: Path) -> str:
    """The section of a page that `check` writes, if there is one."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return text[text.index(SECTION) :] if SECTION in text else ""


def covered(name: str) -> tuple[list[str], list[str]]:
    """Structures of a drawn patient with the default sweeps: true volume inside the interval, and outside."""
    result = load_result(result_of(name, DEFAULT))
    true = true_organs(name, result)
    image = read_nifti(simulated_of(name) / "truth_tumor.nii.gz")
    tumor = rearrange(np.asarray(image.data), image.grid, result.grid)
    assert tumor is not None, f"{name}: another grid"
    inside, outside = [], []
    for organ in result.table.organs:
        mask = true[organ.name] if not organ.tumor else tumor == (2 if "core" in organ.tumor else 1)
        volume = result.volume(organ.name)
        low, high = volume.predicted.get(max(SHARES), volume.central)
        within = low <= float(mask.sum()) * result.grid.voxel_volume / 1000 <= high
        (inside if within else outside).append(organ.name)
    return inside, outside


def describe_demo() -> list[str]:
    """How many true volumes lie in their intervals, per patient of the demo."""
    lines, shares = ["| seed | inside | of | outside |", "|---|---|---|---|"], []
    for name in finished("drawn", DEFAULT):
        inside, outside = covered(name)
        shares.append(len(inside))
        cells = [name.partition("-")[2], len(inside), len(inside) + len(outside), ", ".join(outside)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, f"| **mean of {len(shares)}** | {np.mean(shares):.1f} | | |"] if shares else []


def demo(page: Path | None) -> None:
    """Write the part on the patients of the demo behind the section."""
    text = "\n".join([DEMO, "", *ABOUT_DEMO, "", *describe_demo(), ""])
    print(text)
    if page is not None:
        before = page.read_text(encoding="utf-8").partition(DEMO)[0].rstrip("\n")
        page.write_text(f"{before}\n\n{text}", encoding="utf-8")


def check(page: Path | None) -> None:
    """Leave out one head at a time, and write the section."""
    heads, drawn = ([load(name) for name in finished(kind)] for kind in ("head", "drawn"))
    lines = [SECTION, "", *ABOUT, ""]
    rows = leave_one_out(heads)
    lines += [*describe(rows), ""] if rows else [f"{len(heads)} heads, too few for an interval.", ""]
    if drawn and rows:
        lines += ["### Patients drawn from the model", "", *ABOUT_DRAWN, ""]
        lines += [*describe(list(predict_drawn(drawn, heads))), ""]
    lines += ["### Displacements", "", *describe_displacements(heads, drawn), ""]
    many = (200, 50)
    if both := [n for n in finished("head", many) if n in finished("head")]:
        lines += [f"### {SWEEPS[0]} + {SWEEPS[1]} and {many[0]} + {many[1]} sweeps", ""]
        lines += [*describe_sweeps(both, many), ""]
    text = "\n".join(lines)
    print(text)
    if page is not None:
        before = page.read_text(encoding="utf-8")
        page.write_text(before.removesuffix(section(page)).rstrip("\n") + "\n\n" + text, encoding="utf-8")


ABOUT = """\
Written by `python research/intervals.py heads check --write PAGE`. Heads are simulated from label maps with
organs as planners draw them and tumors of 5 to 40 cm³ of core that displace the brain, four contrasts with
different noise, bias and slices, 20 + 30 sweeps. Ten of the twelve label maps trained the shipped atlas; each
of them was segmented with label probabilities estimated from the other nine (mesh and reference positions
stay). Every head is judged by numbers learned from all others. D0.03cc is that of a plan for the true tumor
([dosimetry](dosimetry.md)); its band comes from 50 drawn structures. Labels of the heads are automatic
and tissue is homogeneous, so that images leave less open than those of patients do.
""".splitlines()
ABOUT_DEMO = """\
Written by `python research/intervals.py heads demo --write PAGE`. The patients of `tumoar demo` with T1, T1c,
T2 and FLAIR and default settings: true volumes inside the 90 % prediction interval, or inside the spread of
the samples where there is none (edema). Heads and tumors come from the model itself; its organs have ragged
borders, because voxels are drawn one by one.
""".splitlines()
ABOUT_DRAWN = """\
The patients of `tumoar demo`: their heads come from the shipped atlas itself, so that its numbers are wider
than needed.
""".splitlines()
