"""A simulated user corrects the GTV of development patients, one stroke at a time.

python research/review.py run [--results DIR] [--patients A,B] [--strokes 5] [--quick]
python research/review.py report [--results DIR] [--users contour] [--write PAGE]

Segment the patients first: `python research/patients.py run default`. The user sees the reference. One user
looks for the largest connected error of the GTV and paints there, in the plane and slice in which it is
largest, with a brush of 10 mm radius at its widest place, keeping to the border of the error. The other draws
the contour of the GTV in the slice, of any plane, with the largest area of errors. Then the tumor is sampled
again. The same users with nothing but the drawn voxels are the comparison. Figures are kept beside the
results as NAME.review.json; what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from patients import GROUPS, PROJECT, RESULTS, group_of, patients
from plots import model_of, stamp
from scipy import ndimage

from tumoar.io.nifti import read_nifti
from tumoar.result.scores import dice
from tumoar.review.session import Session
from tumoar.review.strokes import group_parts

BRUSH = 10.0
"""Radius of the brush, mm."""
AIM = 0.95
CURVE = PROJECT / "docs" / "images" / "review_curve.png"
DRAWN, SAMPLED = "drawn", "sampled"
ARMS = {DRAWN: False, SAMPLED: True}

Mask = npt.NDArray[np.bool_]
Row = dict[str, float]
Found = dict[str, Any]


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


USERS = {"contour": contour, "brush": brush}


def correct(result: Path, reference: Mask, strokes: int, user: str, *, samples: bool) -> list[Row]:
    """Dice before and after every stroke, with the seconds and processor seconds of the answer."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / result.name
        shutil.copytree(result, folder, ignore=shutil.ignore_patterns("review"))
        session = Session.open(folder)
        rows: list[Row] = [{"dice": float(dice(session.mask("GTV"), reference))}]
        for _ in range(strokes):
            if not USERS[user](session, session.mask("GTV"), reference):
                break
            begin, busy = time.monotonic(), time.process_time()
            if samples:
                session.sample_again()
            mask = session.mask("GTV")
            seconds, cpu = time.monotonic() - begin, time.process_time() - busy
            rows.append(
                {"dice": float(dice(mask, reference)), "seconds": round(seconds, 2), "cpu": round(cpu, 2)}
            )
            for stroke in group_parts(session.strokes)[-1]:
                assert (mask[tuple(stroke.voxels.T)] == stroke.inside).all(), "what was drawn stays"
    return rows


def run(patient: Path, result: Path, strokes: int, users: Sequence[str], kept: Path) -> Found:
    """All users and arms of a patient that are not in the file `kept`, which is written after each."""
    values = np.asarray(read_nifti(patient / "tumor.nii.gz").data)
    group = group_of(values)
    reference = values > (0 if group == GROUPS[2] else 1)
    found: Found = {"patient": patient.name, "group": group}
    if kept.exists():
        found |= json.loads(kept.read_text(encoding="utf-8"))
    for user in users:
        for arm, samples in ARMS.items():
            name = f"{user}, {arm}"
            if name not in found:
                found[name] = correct(result, reference, strokes, user, samples=samples)
                kept.write_text(json.dumps(found), encoding="utf-8")
                print(patient.name, name, *(f"{row['dice']:.3f}" for row in found[name]), flush=True)
    return found


def at(rows: list[dict[str, float]], number: int) -> float:
    """Dice after so many strokes, or after the last one if fewer were needed."""
    return rows[min(number, len(rows) - 1)]["dice"]


def report(found: list[Found], names: Sequence[str]) -> tuple[list[str], dict[str, float]]:
    """Lines of the page, and figures, of some users and arms."""
    counts = (0, 1, 2, 3, 4, 5)
    lines = [
        "| patient | group | user, arm | " + " | ".join(map(str, counts)) + " | processor seconds, most |",
        "|---" * (len(counts) + 4) + "|",
    ]
    figures = {}
    for row in found:
        for name in names:
            cells = " | ".join(f"{at(row[name], n):.3f}" for n in counts)
            most = max((r["cpu"] for r in row[name][1:]), default=0)
            shown = f"{most:.1f}" if name.endswith(SAMPLED) else ""
            lines.append(f"| {row['patient']} | {row['group']} | {name} | {cells} | {shown} |")
    for name in names:
        medians = [float(np.median([at(row[name], n) for row in found])) for n in counts]
        means = [float(np.mean([at(row[name], n) for row in found])) for n in counts]
        for what, values in (("median", medians), ("mean", means)):
            cells = " | ".join(f"{v:.3f}" for v in values)
            lines.append(f"| **{what} of {len(found)}** | | {name} | {cells} | |")
            figures |= {f"{what} {name} {n}": v for n, v in zip(counts, values, strict=True)}
    every = [r["cpu"] for row in found for name in names if name.endswith(SAMPLED) for r in row[name][1:]]
    return lines, figures | {"cpu_median": float(np.median(every)), "cpu_most": float(np.max(every))}


def plot(found: list[Found], users: Sequence[str], path: Path) -> None:
    """Curves of each patient, and their medians."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (5 * len(users), 4)
    fig, axes = plt.subplots(1, len(users), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for ax, user in zip(axes.flat, users, strict=True):
        for arm, color in zip(ARMS, ("#e8893f", "#3c5fa8"), strict=True):
            rows = [row[f"{user}, {arm}"] for row in found]
            curves = np.array([[at(row, n) for n in range(max(map(len, rows)))] for row in rows])
            ax.plot(curves.T, color=color, lw=0.7, alpha=0.4)
            ax.plot(np.median(curves, 0), color=color, lw=2.5, label=f"{arm}, median of {len(found)}")
        ax.axhline(AIM, color="#888888", lw=0.8, ls="--")
        ax.set(xlabel=f"strokes, {user}", ylabel="Dice of the GTV")
        ax.legend(loc="lower right", frameon=False)
    fig.savefig(path, dpi=110)
    stamp(path, model_of("accuracy"))


def main() -> None:
    """Run the simulated users, or report what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("run", "report"))
    parser.add_argument("--patients", default="", help="only these, separated by commas")
    parser.add_argument("--users", default=",".join(USERS), help="only these, separated by commas")
    parser.add_argument("--strokes", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one patient, two strokes")
    parser.add_argument("--results", type=Path, default=RESULTS / "default", help="folder of the results")
    parser.add_argument("--write", type=Path, help="also write the report to this page")
    options = parser.parse_args()
    chosen = [p for p in patients() if (options.results / p.name / "state.npz").exists()]
    if options.patients:
        chosen = [p for p in chosen if p.name in options.patients.split(",")]
    if options.quick:
        chosen, options.strokes = chosen[:1], 2
    found, users = [], options.users.split(",")
    names = [f"{user}, {arm}" for user in users for arm in ARMS]
    for patient in chosen:
        kept = options.results / f"{patient.name}{'.quick' if options.quick else ''}.review.json"
        if options.verb == "run":
            run(patient, options.results / patient.name, options.strokes, users, kept)
        row = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        if all(name in row for name in names):
            found.append(row)
    if not found:
        raise SystemExit(f"no patient is complete in {options.results}")
    lines, figures = report(found, names)
    print("\n".join(lines))
    if options.write:
        page = options.write.read_text(encoding="utf-8") if options.write.exists() else ""
        options.write.write_text(page.split("| patient |")[0] + "\n".join(lines) + "\n", encoding="utf-8")
        plot(found, users, CURVE)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
