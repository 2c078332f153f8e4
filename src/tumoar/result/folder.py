"""Write the output folder of a segmentation atomically.

A folder that exists is complete: `run.json`, written last, lists every file with its SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tumoar.geometry.image import Grid, Input
from tumoar.io.calibration import learned_to_row
from tumoar.io.manifest import (
    MANIFEST,
    REPORT,
    add_files,
    publish_folder,
    read_manifest,
    replace_text,
    write_manifest,
)
from tumoar.io.nifti import read_nifti, write_nifti
from tumoar.io.store import labels_to_dict
from tumoar.numerics.threads import map_threads, use_threads
from tumoar.preprocess.case import resample_to_input
from tumoar.result.native import Delivered, deliver, deliver_compartments, remove_small_parts, same_space
from tumoar.result.parts import describe_gtv
from tumoar.result.prediction import Prediction, describe_interval
from tumoar.result.segmentation import Segmentation, Volume, exclusive, organ_mask, scale_volume
from tumoar.result.state import STATE, write_state
from tumoar.vocabulary.errors import IntegrityError
from tumoar.vocabulary.labels import LabelTable, Organ, Structure, TumorClass
from tumoar.vocabulary.notes import Note, needs_review
from tumoar.vocabulary.tables import to_tsv

__all__ = [
    "COMPARTMENTS",
    "MANIFEST",
    "REPORT",
    "Options",
    "add_files",
    "add_table",
    "label_rows",
    "note_emptied",
    "read_manifest",
    "replace_text",
    "status",
    "write_result",
    "write_table",
]

ANATOMY = "_anatomy.nii.gz"  # of a sample
PREDICTED = "predicted"
"""Folder of predicted probabilities; `probabilities` has vote fractions."""
WHOLE_ROW = "whole tumor"
COMPARTMENTS = "compartments.nii.gz"  # hemispheres and what lies below the tentorium, for margins


@dataclass(frozen=True)
class Options:
    """What to write besides the labels."""

    organs: tuple[str, ...] = ()  # empty: all
    least_cm3: float = 0.0  # parts of a structure below this are removed
    samples: bool = False  # each sample as a label map


def status(notes: Sequence[Note]) -> str:
    """OK, or NEEDS REVIEW if any note asks for it."""
    return "NEEDS REVIEW" if needs_review(notes) else "OK"


def write_result(
    out: Path,
    result: Segmentation,
    notes: Sequence[Note],
    manifest: Mapping[str, Any],
    options: Options,
    report: Callable[[Mapping[str, Any]], str],
    log: Iterable[str],
) -> tuple[Note, ...]:
    """Write a result to folder `out`; an existing result is replaced only when the new one is complete.

    `report` renders the page from the manifest. Returns all notes, including those on the written files.
    """
    with publish_folder(out, "the result") as work:
        rows, whole_tumor = _write_images(work, result, options)
        notes = (*notes, *_note_emptied(rows, options.least_cm3))
        write_table(work / "volumes.tsv", [*rows, *([whole_tumor] if whole_tumor else [])])
        write_table(work / "segmentation.tsv", label_rows(result.table))
        _write_transforms(work, result)
        (work / "log.txt").write_text("\n".join(log) + "\n", encoding="utf-8")
        whole = {
            **manifest,
            "status": status(notes),
            "notes": [note.to_dict() for note in notes],
            "labels": labels_to_dict(result.table),
            "contrasts": {c.name: asdict(c) for c in result.case.contrasts},
            "volumes": rows,
            "whole_tumor": whole_tumor,
            "prediction": {
                name: {**learned_to_row(p.learned), "calibrated_on": p.calibrated_on, "chance": p.chance}
                for name, p in (*result.tumor_predictions.items(), *_organ_predictions(result, options))
            },
        }
        with _meanwhile(partial(_write_state, work, result)):
            (work / REPORT).write_text(report(whole), encoding="utf-8")
        write_manifest(work, whole)
    return notes


def _organ_predictions(result: Segmentation, options: Options) -> Iterator[tuple[str, Prediction]]:
    for organ in _wanted(result, options):
        predicted = result.prediction(organ.name)
        if predicted is not None and not organ.tumor:
            yield organ.name, predicted


def _wanted(result: Segmentation, options: Options) -> list[Organ]:
    return [o for o in result.table.organs if not options.organs or o.name in options.organs]


def _note_emptied(rows: Iterable[Mapping[str, Any]], least_cm3: float) -> Iterator[Note]:
    """Note structures that are empty after removing small parts."""
    for row in rows:
        if least_cm3 > 0 and row["removed_voxels"] and not row["components"]:
            yield note_emptied(row["name"], least_cm3)


def note_emptied(name: str, least_cm3: float) -> Note:
    """Note a structure that is empty after removing small parts."""
    text = f"empty, no part of it reaches {least_cm3:g} cm³"
    return Note("min-volume", text, action="lower --min-volume", where=name)


def add_table(out: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add a table to a finished result and its manifest."""
    with add_files(out) as folder:
        write_table(folder / name, rows)


def label_rows(table: LabelTable) -> list[dict[str, Any]]:
    """One row per value of the label maps."""
    known = sorted(table.organs, key=lambda o: -len((*o.structures, *o.tumor)))  # the smallest one counts
    organs = {part: o.name for o in known if o.name != "Brain" for part in (*o.structures, *o.tumor)}
    rows: list[Structure | TumorClass] = [*table.structures, *(table.tumor if table.has_tumor else ())]
    return [
        {
            "index": row.index,
            "name": row.name,
            "tg263": organs.get(row.name, ""),
            "snomed": row.snomed.value if row.snomed else "",
            "color": row.color,
        }
        for row in rows
    ]


# ---- images ------------------------------------------------------------------------------------------------


def _write_images(
    work: Path, result: Segmentation, options: Options
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Write all images; return the rows of volumes.tsv, and that of the whole tumor."""
    case, wanted = result.case, _wanted(result, options)
    for folder in ("structures", "probabilities", "native"):
        (work / folder).mkdir()
    if result.tumor_predictions or any(result.prediction(o.name) for o in wanted):
        (work / PREDICTED).mkdir()
    main = deliver(result, case.reference)
    tasks: list[Callable[[], Any]] = [partial(_write_maps, work, result, main)]
    tasks += [partial(_write_organ, work, result, main, organ, options.least_cm3) for organ in wanted]
    _, *rows = map_threads(lambda task: task(), tasks)
    _require_sides(work, result, main)
    done: dict[str, Delivered] = {case.reference: main}
    for given in case.inputs:
        twin = next((n for n in done if same_space(result, n, given.name)), None)
        done[given.name] = done[twin] if twin else deliver(result, given.name)
    map_threads(lambda given: _write_native(work, done[given.name], given), case.inputs)
    if options.samples:
        _write_samples(work / "samples", result)
    return rows, _whole_tumor_row(result, main)


def _write_maps(work: Path, result: Segmentation, main: Delivered) -> None:
    """Write the label map, the map of uncertainty and that of compartments."""
    write_nifti(work / "segmentation.nii.gz", main.labels, main.grid)
    entropy = resample_to_input(result.entropy(), result.case, result.case.reference)
    write_nifti(work / "uncertainty.nii.gz", entropy, main.grid)
    write_nifti(work / COMPARTMENTS, deliver_compartments(result), main.grid)


def _write_organ(
    work: Path, result: Segmentation, main: Delivered, organ: Organ, least_cm3: float
) -> dict[str, Any]:
    """Write mask and vote fractions of an organ; return its row of volumes.tsv."""
    mask, parts, removed = remove_small_parts(
        organ_mask(result.table, organ, main.votes), main.grid, least_cm3
    )
    write_nifti(work / "structures" / f"{organ.name}.nii.gz", mask.astype(np.uint8), main.grid)
    share = resample_to_input(result.probability(organ.name), result.case, result.case.reference)
    write_nifti(work / "probabilities" / f"{organ.name}.nii.gz", share, main.grid)
    predicted = result.prediction(organ.name)
    if predicted is not None:
        chance = resample_to_input(predicted.probability(), result.case, result.case.reference)
        write_nifti(work / PREDICTED / f"{organ.name}.nii.gz", chance, main.grid)
    cubic = main.grid.voxel_volume / 1000
    under = float((mask & (main.votes.z == 1)).sum()) if result.table.is_anatomy(organ) else 0.0
    volume = scale_volume(result.volume(organ.name), float(mask.sum()) * cubic)
    return {
        "name": organ.name,
        **volume_columns(volume),
        "components": parts,
        "removed_voxels": removed + result.left_out(organ.name),
        "under_tumor_cm3": round(under * cubic, 4),
        "made_of": describe_gtv(organ),
        **interval_columns(volume),
    }


def volume_columns(volume: Volume) -> dict[str, Any]:
    """Outlined volume and spread of the samples, for a row of volumes.tsv."""
    low, high = volume.spread(0.90)
    return {
        "outlined_cm3": round(volume.outlined, 4),
        "mean_cm3": round(volume.mean, 4),
        "sd_cm3": round(volume.sd, 4),
        "p05_cm3": round(low, 4),
        "p95_cm3": round(high, 4),
    }


def interval_columns(volume: Volume) -> dict[str, Any]:
    """Prediction intervals for a row of volumes.tsv, and what the row's interval is."""
    row: dict[str, Any] = {}
    for share, (low, high) in volume.predicted.items():
        percent = round(100 * share)
        row |= {f"low{percent}_cm3": round(low, 4), f"high{percent}_cm3": round(high, 4)}
    return {**row, "calibrated_on": volume.calibrated_on, "interval": describe_interval(volume.calibrated_on)}


def _whole_tumor_row(result: Segmentation, main: Delivered) -> dict[str, Any] | None:
    """Row of the whole tumor, if tumor was segmented; it is no structure of its own."""
    if not result.config.tumor:
        return None
    outlined = float((main.votes.z == 1).sum()) * main.grid.voxel_volume / 1000
    volume = scale_volume(result.whole_tumor(), outlined)
    return {"name": WHOLE_ROW, **volume_columns(volume), **interval_columns(volume)}


def _write_native(work: Path, found: Delivered, given: Input) -> None:
    write_nifti(work / "native" / f"{given.name}_segmentation.nii.gz", found.labels, given.grid)


def _write_samples(folder: Path, result: Segmentation) -> None:
    """Write two label maps per sample on the 1 mm grid: tumor over anatomy, and anatomy alone."""
    folder.mkdir()
    for number, sample in enumerate(result.tally.iter_samples(), 1):
        name = f"sample_{number:03}"
        write_nifti(folder / f"{name}.nii.gz", exclusive(result.table, sample), result.case.grid)
        write_nifti(folder / f"{name}{ANATOMY}", result.table.indices[sample.l], result.case.grid)


def _require_sides(work: Path, result: Segmentation, main: Delivered) -> None:
    """Read the label map back and check that paired structures lie on the correct side."""
    written = read_nifti(work / "segmentation.nii.gz")
    for s in result.table.structures:
        if s.side is None:
            continue
        ours = _center(result.labels == s.index, result.case.grid)
        theirs = _center(written.data == s.index, written.grid)
        if ours is not None and theirs is not None and abs(ours - theirs) > 5.0:
            raise IntegrityError("written", f"{s.name} moved when it was written", do="report this bug")


def _center(mask: np.ndarray, grid: Grid) -> float | None:
    """World x of the center of a mask, mm; None for very small masks."""
    where = np.argwhere(mask)
    return float(grid.world(where.mean(0))[0]) if len(where) * grid.voxel_volume > 100 else None


def _write_transforms(work: Path, result: Segmentation) -> None:
    (work / "transforms").mkdir()
    for given in result.case.inputs:
        if given.name != result.case.reference:
            path = work / "transforms" / f"{given.name}_to_{result.case.reference}.txt"
            np.savetxt(path, given.to_reference, fmt="%.9g", header="RAS mm, 4x4")


def _write_state(work: Path, result: Segmentation) -> None:
    if result.last is not None:
        write_state(work / STATE, result)


@contextmanager
def _meanwhile(task: Callable[[], object]) -> Iterator[None]:
    """Run a task without parallel kernels on a second thread during the block; with one thread, before."""
    if use_threads(None) == 1:
        task()
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(task)
        yield
        running.result()


# ---- files -------------------------------------------------------------------------------------------------


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as tab-separated values."""
    path.write_text(to_tsv(rows), encoding="utf-8")
