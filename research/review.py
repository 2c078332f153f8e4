"""A simulated user corrects the GTV of development patients, one stroke at a time.

python research/review.py run [--patients A,B] [--strokes 10] [--quick]
python research/review.py report [--write PAGE]

Segment the patients first: `python research/patients.py run review`. The user sees the reference, looks for
the largest connected error of the GTV, goes to the plane and slice in which it is largest, and paints there
with a brush of 10 mm radius at its widest place, keeping to the border of the error. Then the tumor is
sampled again. The same user with nothing but the drawn voxels is the comparison. The figures are kept
beside the results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from patients import GROUPS, PROJECT, RESULTS, group_of, patients
from scipy import ndimage

from tumoar.io.nifti import read_nifti
from tumoar.result.scores import dice
from tumoar.review.session import Session

NAME = "review"
BRUSH = 10.0
"""Radius of the brush, mm."""
AIM, WITHIN, SECONDS = 0.95, 5, 10.0

Mask = npt.NDArray[np.bool_]
Row = dict[str, float]


def largest_error(mask: Mask, reference: Mask) -> tuple[bool, Mask] | None:
    """The largest connected error, and whether it belongs inside; None if nothing is wrong."""
    found = []
    for inside in (True, False):
        parts, count = ndimage.label((mask != reference) & (reference == inside))
        if count:
            sizes = np.bincount(parts.ravel())[1:]
            found.append((int(sizes.max()), inside, parts == 1 + sizes.argmax()))
    return max(found, key=lambda row: row[0])[1:] if found else None


def widest(part: Mask, spacing: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Axis and slice in which an error has the largest area."""
    areas = [
        part.sum(tuple(a for a in range(3) if a != axis)) * np.prod(np.delete(spacing, axis))
        for axis in range(3)
    ]
    axis = int(np.argmax([area.max() for area in areas]))
    return axis, int(areas[axis].argmax())


def brush(session: Session, mask: Mask, reference: Mask) -> bool:
    """Paint at the largest error, keeping to its border, with one dab of the brush."""
    found, spacing = largest_error(mask, reference), session.grid.spacing
    if found is None:
        return False
    inside, part = found
    axis, at = widest(part, spacing)
    flat, steps = np.take(part, at, axis), np.delete(spacing, axis)
    depth = ndimage.distance_transform_edt(np.pad(flat, 1), sampling=steps)[1:-1, 1:-1]
    middle = np.array(np.unravel_index(depth.argmax(), flat.shape))
    away = np.linalg.norm((np.indices(flat.shape).T - middle) * steps, axis=-1).T
    painted = np.zeros_like(part)
    np.moveaxis(painted, axis, 0)[at] = flat & (away <= BRUSH)
    session.paint("GTV", inside, np.argwhere(painted))
    return True


def contour(session: Session, mask: Mask, reference: Mask) -> bool:
    """Draw the outline in the slice with the largest area of errors, around the largest piece there.

    A slice with no reference is emptied with the tool that cuts out a piece.
    """
    wrong = mask != reference
    if not wrong.any():
        return False
    axis, at = widest(wrong, session.grid.spacing)
    here = np.zeros_like(mask)
    np.moveaxis(here, axis, 0)[at] = True
    pieces, count = ndimage.label(here & (mask | reference))
    errors = np.bincount(pieces[wrong & here], minlength=count + 1)
    piece = pieces == 1 + errors[1:].argmax()
    section = np.argwhere(piece & reference)
    if len(section):
        session.draw("GTV", section, axis)
    else:
        session.paint("GTV", False, np.argwhere(piece & mask))
    return True


USERS = {"brush": brush, "contour": contour}


def correct(folder: Path, reference: Mask, strokes: int, user: str, *, samples: bool) -> list[Row]:
    """Dice before and after every stroke, with the seconds and processor seconds of the answer."""
    shutil.rmtree(folder / "review", ignore_errors=True)
    session = Session.open(folder)
    rows: list[Row] = [{"dice": float(dice(session.mask("GTV"), reference))}]
    for _ in range(strokes):
        if not USERS[user](session, session.mask("GTV"), reference):
            break
        begin, busy = time.monotonic(), time.process_time()
        if samples:
            session.sample_again()
        mask = session.mask("GTV")
        rows.append(
            {
                "dice": float(dice(mask, reference)),
                "seconds": round(time.monotonic() - begin, 2),
                "cpu": round(time.process_time() - busy, 2),
            }
        )
        for stroke in session.strokes[-2:]:
            assert (mask[tuple(stroke.voxels.T)] == stroke.inside).all() or len(session.strokes) > 2
    shutil.rmtree(folder / "review", ignore_errors=True)
    return rows


def run(patient: Path, folder: Path, strokes: int) -> dict[str, object]:
    image = read_nifti(patient / "tumor.nii.gz")
    values = np.asarray(image.data)
    group = group_of(values)
    reference = values > (0 if group == GROUPS[2] else 1)
    manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    found: dict[str, object] = {"patient": patient.name, "group": group, "stamps": manifest["stamps"]}
    for name, samples in (("drawn", False), ("sampled", True)):
        found[name] = correct(folder, reference, strokes, samples=samples)
    return found


def at(rows: list[dict[str, float]], number: int) -> float:
    """Dice after so many strokes, or after the last one if fewer were needed."""
    return rows[min(number, len(rows) - 1)]["dice"]


def report(found: list[dict]) -> tuple[list[str], dict[str, float]]:
    counts = (0, 1, 2, 3, 5, 10)
    head = " | ".join(f"{n}" for n in counts)
    lines = [f"| patient | group | arm | {head} | seconds | processor seconds |"]
    lines.append("|---|---|---|" + "---|" * (len(counts) + 2))
    for row in found:
        for name in ("sampled", "drawn"):
            cells = " | ".join(f"{at(row[name], n):.3f}" for n in counts)
            clock = [np.median([r[k] for r in row[name][1:]]) for k in ("seconds", "cpu")]
            fast = " (fast)" if row["stamps"] else ""
            shown = f"{clock[0]:.1f} | {clock[1]:.1f}" if name == "sampled" else " | "
            lines.append(f"| {row['patient']}{fast} | {row['group']} | {name} | {cells} | {shown} |")
    figures = {}
    for name in ("sampled", "drawn"):
        medians = [float(np.median([at(row[name], n) for row in found])) for n in counts]
        lines.append(
            f"| **median of {len(found)}** | | {name} | " + " | ".join(f"{m:.3f}" for m in medians) + " | | |"
        )
        figures |= {f"{name}_{n}": m for n, m in zip(counts, medians, strict=True)}
    every = [r["cpu"] for row in found for r in row["sampled"][1:]]
    figures |= {"cpu_median": float(np.median(every)), "cpu_most": float(np.max(every))}
    return lines, figures


def plot(found: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, color in (("drawn", "#e8893f"), ("sampled", "#3c5fa8")):
        most = max(len(row[name]) for row in found)
        curves = np.array([[at(row[name], n) for n in range(most)] for row in found])
        ax.plot(curves.T, color=color, lw=0.7, alpha=0.4)
        label = {"drawn": "drawn voxels only", "sampled": "sampled again"}[name]
        ax.plot(np.median(curves, 0), color=color, lw=2.5, label=f"{label}, median of {len(found)}")
    ax.axhline(AIM, color="#888888", lw=0.8, ls="--")
    ax.set(xlabel="strokes", ylabel="Dice of the GTV")
    ax.legend(loc="lower right", frameon=False)
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("run", "report"))
    parser.add_argument("--patients", default="", help="only these, separated by commas")
    parser.add_argument("--strokes", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one patient, two strokes")
    parser.add_argument("--results", type=Path, default=RESULTS / NAME, help="folder of the results")
    parser.add_argument("--write", type=Path, help="also write the report to this page")
    options = parser.parse_args()
    chosen = [p for p in patients() if (options.results / p.name / "run.json").exists()]
    if options.patients:
        chosen = [p for p in chosen if p.name in options.patients.split(",")]
    if options.quick:
        chosen, options.strokes = chosen[:1], 2
    found = []
    for patient in chosen:
        kept = options.results / f"{patient.name}.review.json"
        if options.verb == "run":
            row = run(patient, options.results / patient.name, options.strokes)
            if not options.quick:
                kept.write_text(json.dumps(row), encoding="utf-8")
            found.append(row)
            print(patient.name, *(f"{r['dice']:.3f}" for r in row["sampled"]), flush=True)
        elif kept.exists():
            found.append(json.loads(kept.read_text(encoding="utf-8")))
    lines, figures = report(found)
    print("\n".join(lines))
    if options.write:
        begin = (
            (options.write.read_text(encoding="utf-8").split("| patient |")[0])
            if options.write.exists()
            else ""
        )
        options.write.write_text(begin + "\n".join(lines) + "\n", encoding="utf-8")
        plot(found, PROJECT / "research" / "figures" / "review.png")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
