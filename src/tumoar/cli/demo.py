"""`tumoar demo`: a patient drawn from the model, segmented, and compared with the truth."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tumoar.result.segmentation import Segmentation
    from tumoar.simulate import Truth

CONTRASTS = ("T1", "T1c", "T2", "FLAIR")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")] = Path(
        "tumoar-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the patient.")] = 0,
    fast: Annotated[
        bool, typer.Option("--fast", help="70 sweeps instead of 250: core may not be complete.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")] = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the report in a browser.")] = False,
) -> None:
    """Draw a patient from the model, segment it and compare the result with the truth."""
    from tumoar.app.machine import limited_threads
    from tumoar.app.pipeline import Progress
    from tumoar.app.request import Request
    from tumoar.app.segment import segment
    from tumoar.app.warm import Warming
    from tumoar.cli.watch import Watch
    from tumoar.io.files import absolute
    from tumoar.io.models import default_model
    from tumoar.io.outputs import require_place
    from tumoar.preprocess.case import build_case
    from tumoar.result.folder import add_table
    from tumoar.simulate import Acquisition, draw_patient
    from tumoar.vocabulary.config import FAST, Config

    output = absolute(output)
    require_place(output, overwrite=overwrite)
    model = default_model()
    with Watch() as watch:
        with limited_threads(threads), Warming() as kernels:  # the patient is drawn by the same kernels
            kernels.start(len(CONTRASTS))
            kernels.wait(watch)
        watch.say(f"drawing a patient: head from the atlas, tumor from the shape prior, seed {seed}")
        watch(Progress("draw", 0, 1, {}))
        images, truth = draw_patient(model, [Acquisition(name) for name in CONTRASTS], seed)
        request = Request(
            case=build_case(dict(images)),
            model=model,
            config=FAST if fast else Config(),
            output=output,
            seed=seed,
            resume=not overwrite,
            overwrite=overwrite,
            threads=threads,
            stamps=("demo: a synthetic patient",)
            + (("fast: fewer sweeps than the default",) if fast else ()),
        )
        outcome = segment(request, watch)
        if outcome.result is not None:
            rows = compare(outcome.result, truth)
            add_table(output, "truth.tsv", rows)
            for row in rows:
                watch.say(describe_row(row))
            watch.say(describe_coverage(rows))
    if show:
        webbrowser.open((output / "report.html").resolve().as_uri())


def compare(result: Segmentation, truth: Truth) -> list[dict[str, Any]]:
    """Compare each organ with the truth, whether or not tumor covers it."""
    import numpy as np

    from tumoar.geometry.resample import resample
    from tumoar.inference.tally import Votes
    from tumoar.result.prediction import describe_interval
    from tumoar.result.scores import dice
    from tumoar.result.segmentation import STORED, organ_mask

    table, grid = result.table, result.case.grid
    position = np.zeros(256, np.uint8)
    position[table.indices] = np.arange(table.K)
    votes = Votes(position[truth.l], truth.z.astype(np.uint8), truth.y.astype(np.uint8))
    rows = []
    for organ in table.organs:
        true = resample(organ_mask(table, organ, votes), truth.grid, grid) > 0.5
        found, volume = result.mask(organ.name), result.volume(organ.name)
        cubic = grid.voxel_volume / 1000
        low, high = volume.predicted.get(STORED, volume.central)
        true_cm3 = float(true.sum()) * cubic
        rows.append(
            {
                "name": organ.name,
                "dice": round(dice(found, true), 4),
                "cm3": round(float(found.sum()) * cubic, 3),
                "true_cm3": round(true_cm3, 3),
                "low_cm3": round(low, 3),
                "high_cm3": round(high, 3),
                "interval": describe_interval(volume.calibrated_on),
                "covered": "yes" if round(low, 3) <= round(true_cm3, 3) <= round(high, 3) else "no",
            }
        )
    return rows


def describe_row(row: Mapping[str, Any]) -> str:
    """Dice, outlined volume, truth and interval of a structure."""
    volumes = f"{row['cm3']:.2f} cm³, truth {row['true_cm3']:.2f} cm³"
    interval = f"{row['interval']} {row['low_cm3']:.2f}–{row['high_cm3']:.2f} cm³"
    return f"{row['name']:14} Dice {row['dice']:.2f}  {volumes}  {interval}"


def describe_coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many of the structures that exist have their true volume in their interval, by kind of interval."""
    there = [row for row in rows if row["true_cm3"] > 0]

    def count(alike: Sequence[Mapping[str, Any]]) -> str:
        return f"{sum(row['covered'] == 'yes' for row in alike)} of {len(alike)}"

    kinds = dict.fromkeys(row["interval"] for row in there)
    texts = [f"{kind} {count([row for row in there if row['interval'] == kind])}" for kind in kinds]
    return f"intervals contain the true volume of {count(there)} structures: {'; '.join(texts)}"
