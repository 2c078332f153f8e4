"""Doses to automatic and to true outlines of simulated patients: section 4.1.2 of the paper.

python research/dosimetry.py [--quick] [--patients N] [--cache DIR]

Patients as in research/samples.py, whole heads scanned as T1c, FLAIR, T2 and CT at 1 mm, with tumors that
trained no shape prior and heads that trained no atlas. Each has a plan: 60 Gy in 30 fractions to the PTV of
the true GTV (CTV 15 mm inside the brain, PTV 3 mm: ESTRO-EANO 2023), and outside it the dose at the same
distance from the PTV in a clinical plan of a head phantom, the median over all directions. As in the paper,
the plan is made for the true outlines, and D5, D50 and D95 of the automatic ones are compared with theirs.

Prints, as its last line, one JSON object; the full run writes research/results/dosimetry.md and its figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from fits import DECIDES, fitted
from head_cases import DATA, LABELS, PROJECT, digest
from matplotlib.figure import Figure
from samples import SEED, collected, patient, sampled
from scipy.ndimage import distance_transform_edt

from tumoar.geometry.contours import fill_contours
from tumoar.geometry.distance import distance_to
from tumoar.geometry.image import Grid, Image
from tumoar.geometry.pieces import cut_mask
from tumoar.inference.tally import Votes
from tumoar.io.dose import read_dose
from tumoar.io.models import default_model
from tumoar.io.rtstruct import read_rtstruct
from tumoar.radiotherapy.dvh import Dvh, dvh
from tumoar.radiotherapy.margins import grow
from tumoar.result.scores import dice
from tumoar.result.segmentation import organ_mask
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SCANS = ("T1c", "FLAIR", "T2", "CT")
PERCENTS = (5, 50, 95)
PRESCRIBED = 60.0  # Gy
CTV, PTV = 15.0, 3.0  # mm
GROUPS = {
    "GTV": ("GTV",),
    "brainstem": ("Brainstem",),
    "hippocampi": ("Hippocampus_L", "Hippocampus_R"),
    "eyes": ("Eye_L", "Eye_R"),
    "optic nerves": ("OpticNrv_L", "OpticNrv_R"),
    "chiasm": ("OpticChiasm",),
}
LIMIT = 54.0  # Gy, to chiasm and optic nerves (section 4.1.2 of the paper)
AT = np.linspace(0, 64, 129)  # Gy
RESULTS = PROJECT / "research" / "results" / "dosimetry.md"
FIGURES = PROJECT / "research" / "figures"


@cache
def fall_off() -> tuple[Array, Array]:
    """Distance from the PTV in mm and median dose, as a fraction of the prescribed one, in a clinical plan.

    Inside the body of the phantom, as far as the plan has dose; it never rises with distance.
    """
    folder = DATA / "radiotherapy" / "eclipse-ent"
    dose = read_dose(folder / "dose.nrrd")
    outlines = {o.name: o for o in read_rtstruct(folder / "rtstruct.dcm").outlines}
    target, body = (fill_contours(outlines[name], dose.grid) > 0.5 for name in ("PTV1", "BODY"))
    away = distance_transform_edt(~target, sampling=dose.grid.spacing)
    values = np.asarray(dose.data, float)
    at = np.arange(0, np.ceil(away[body].max()))
    middle = [np.median(values[body & (np.abs(away - d) <= 1)]) for d in at[1:]]
    level = np.median(values[target])
    return at, np.minimum.accumulate([1.0, *(float(m / level) for m in middle)])


def plan_dose(target: Mask, brain: Mask, grid: Grid) -> Image:
    """Dose of a plan for a GTV, Gy."""
    ctv = grow(target, CTV, grid.spacing) & (brain | target)
    away = distance_to(grow(ctv, PTV, grid.spacing), grid.spacing)
    return Image((PRESCRIBED * np.interp(away, *fall_off())).astype(np.float32), grid)


def outlines(votes: Votes) -> dict[str, Mask]:
    """Masks of the structures that the paper evaluates."""
    organs = {o.name: o for o in LABELS.organs}
    return {
        name: votes.y > 0 if name == "GTV" else organ_mask(LABELS, organs[name], votes)
        for names in GROUPS.values()
        for name in names
    }


def histogram(mask: Mask, dose: Image) -> Dvh | None:
    """Dose-volume histogram, if the structure was found at all."""
    return dvh(cut_mask(Image(mask.astype(np.float32), dose.grid)), dose) if mask.any() else None


def measure(found: Votes, truth: Votes, grid: Grid) -> dict[str, dict]:
    """For each structure, Dice, and D5, D50, D95 and the curve of both outlines; None where one is empty."""
    brain = LABELS.in_brain[truth.l] | (truth.z > 0)
    dose = plan_dose(truth.y > 0, brain, grid)
    ours, theirs = outlines(found), outlines(truth)
    out = {}
    for name, mask in ours.items():
        row: dict[str, object] = {"dice": round(dice(mask, theirs[name]), 4)}
        for side, m in (("automatic", mask), ("true", theirs[name])):
            curve = histogram(m, dose)
            row[side] = None if curve is None else [round(curve.D(p), 3) for p in PERCENTS]
            row[f"{side}_curve"] = None if curve is None else [round(float(v), 2) for v in curve.V(AT)]
        out[name] = row
    return out


def rows(folder: Path, patients: int, gibbs: GibbsConfig) -> Iterator[dict]:
    """One row per patient."""
    kept = folder / f"dosimetry_{digest(__file__, DECIDES)}_{gibbs.burn_in}_{gibbs.samples}"
    kept.mkdir(exist_ok=True)
    for number in range(patients):
        path = kept / f"{number}.json"
        if not path.exists():
            one, model = patient(number, folder, SCANS), default_model()
            fit, _, _ = fitted(one.case, model, GemConfig())
            votes = sampled(one.case, fit, model, Config(gibbs=gibbs))[0].vote()
            row = {"patient": one.name, "structures": measure(votes, one.votes, one.case.grid)}
            path.write_text(json.dumps(row), encoding="utf-8")
        yield json.loads(path.read_text(encoding="utf-8"))


def pairs(found: list[dict], group: str) -> Array:
    """(n, 3, 2) D5, D50, D95 of automatic and true outlines, of every structure of a group that both have."""
    of = [r["structures"][name] for r in found for name in GROUPS[group]]
    return np.array([[s["automatic"], s["true"]] for s in of if s["automatic"] and s["true"]]).swapaxes(1, 2)


def missing(found: list[dict], group: str) -> int:
    """Structures that exist and were not found."""
    of = [r["structures"][name] for r in found for name in GROUPS[group]]
    return sum(s["true"] is not None and s["automatic"] is None for s in of)


def page(found: list[dict]) -> str:
    lines = ["# Dosimetric evaluation", "", *__doc__.strip().splitlines()[4:9], ""]
    lines += [
        f"{len(found)} patients, seed {SEED}. Mean absolute difference (largest) of automatic and true",
        f"outlines, Gy; structures that were not found; and structures of which only one outline exceeds"
        f" {LIMIT:g} Gy in D5.",
        "",
        "| structure | outlines | Dice | D5 | D50 | D95 | not found | on other sides of the limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, names in GROUPS.items():
        both = pairs(found, group)
        apart = np.abs(both[:, :, 0] - both[:, :, 1])
        cells = [f"{apart[:, k].mean():.2f} ({apart[:, k].max():.2f})" for k in range(len(PERCENTS))]
        overlap = np.mean([r["structures"][n]["dice"] for r in found for n in names])
        crossed = int(((both[:, 0] > LIMIT).sum(1) == 1).sum())
        limit = str(crossed) if group in ("optic nerves", "chiasm") else ""
        lines.append(
            f"| {group} | {len(both)} | {overlap:.3f} | "
            + " | ".join(cells)
            + f" | {missing(found, group)} | {limit} |"
        )
    lines += ["", "![D5, D50 and D95](../figures/dosimetry.png)", ""]
    return "\n".join([*lines, "![Dose-volume histograms](../figures/dosimetry_dvh.png)", ""])


def draw(found: list[dict]) -> None:
    """Automatic against true doses of all patients, and all histograms of the first, as in the paper."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for panel, group in zip(figure.subplots(2, 3).flat, GROUPS):
        both = pairs(found, group)
        panel.plot([0, 64], [0, 64], color="#999999", linewidth=0.8)
        for k, (percent, marker) in enumerate(zip(PERCENTS, "o^s")):
            panel.plot(both[:, k, 1], both[:, k, 0], marker, markersize=5, alpha=0.7, label=f"D{percent}")
        panel.set(title=group, xlim=(0, 64), ylim=(0, 64), xlabel="true (Gy)", ylabel="automatic (Gy)")
        panel.set_aspect("equal")
    figure.axes[0].legend()
    figure.savefig(FIGURES / "dosimetry.png", dpi=110)
    _draw_histograms(found[0]["structures"])


def _draw_histograms(structures: Mapping[str, dict]) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    for number, (name, s) in enumerate(structures.items()):
        for side, style in (("automatic", "-"), ("true", "--")):
            if s[f"{side}_curve"]:
                label = name if side == "automatic" else None
                panel.plot(AT, s[f"{side}_curve"], style, color=f"C{number}", linewidth=1.3, label=label)
    panel.set(xlabel="dose (Gy)", ylabel="volume (%)", xlim=(0, 64), ylim=(0, 102))
    panel.set_title("solid: automatic, broken: true")
    panel.legend(fontsize=8)
    figure.savefig(FIGURES / "dosimetry_dvh.png", dpi=110)


def show(row: dict) -> str:
    """Progress."""
    worst = {
        name: round(float(np.abs(np.subtract(s["automatic"], s["true"])).max()), 2)
        for name, s in row["structures"].items()
        if s["automatic"] and s["true"]
    }
    return f"{row['patient']} largest difference, Gy: {worst}"


def main() -> None:
    is_quick, found = collected(__doc__, rows, 4, show=show)
    if not is_quick:
        RESULTS.write_text(page(found), encoding="utf-8")
        draw(found)
    apart = {g: np.abs(np.diff(pairs(found, g), axis=2)) for g in GROUPS}
    print(json.dumps({g: round(float(a.mean()), 3) if a.size else None for g, a in apart.items()}))


if __name__ == "__main__":
    main()
