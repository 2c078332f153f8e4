"""`tumoar simulate --independent`: a scan of a head by the simulator that shares nothing with the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from tumoar.vocabulary.errors import UsageError

KIND = "simulation"


def simulate_independent(
    output: Path,
    labels: Path,
    contrasts: Sequence[str],
    *,
    core_ml: float,
    slices: float,
    orientation: str,
    field: float,
    turn: float | None,
    metal: bool,
    seed: int,
    overwrite: bool,
) -> None:
    """Write images, organs and tumor. With `turn`, it is another scan of the same head."""
    import numpy as np

    from tumoar.geometry.orientation import reorient
    from tumoar.geometry.resample import resample
    from tumoar.io.files import absolute
    from tumoar.io.nifti import read_nifti, write_nifti
    from tumoar.io.outputs import new_folder, require_empty
    from tumoar.simulate.independent import Anatomy, Scan, draw_patient, motion, scan
    from tumoar.simulate.independent.scan import AXES
    from tumoar.simulate.independent.sequences import FIELDS, relaxation_table
    from tumoar.simulate.scanner import change_spacing
    from tumoar.train.clinical import clinical_rules, define_organs
    from tumoar.train.head_table import default_heads

    missing = [name for name in contrasts if name not in relaxation_table().sequences]
    if missing:
        do = f"use one of {', '.join(relaxation_table().sequences)}"
        raise UsageError("contrast", f"contrast '{missing[0]}' cannot be simulated", do=do)
    how = next((name for name in AXES if name == orientation), None)
    if how is None:
        do = f"use {', '.join(AXES)}"
        raise UsageError(
            "independent", "slices of this orientation cannot be simulated", found=orientation, do=do
        )
    if field not in FIELDS:
        do = f"use {' or '.join(f'{f:g}' for f in FIELDS)}"
        raise UsageError("independent", "no relaxation times at this field", found=f"{field:g} T", do=do)
    require_empty(output, [labels], overwrite=overwrite, kind=KIND)
    image, _ = reorient(read_nifti(labels))
    source = np.asarray(image.data).astype(np.int32)
    found = define_organs(source, image.grid, default_heads(), clinical_rules(), name=labels.name)
    anatomy = Anatomy(found.source, image.grid, found.organs, found.globes, found.courses)
    rng_head, rng_scan = np.random.default_rng(seed).spawn(2)
    patient = draw_patient(anatomy, core_ml, rng_head)
    degrees = (0.0, 0.0, 0.0)
    if turn is not None:
        rng_turn, rng_scan = rng_scan.spawn(2)
        direction = rng_turn.normal(size=3)
        x, y, z = (float(v) for v in direction / np.linalg.norm(direction) * turn)
        degrees = (x, y, z)
    scans = [
        Scan(name, thickness=slices, orientation=how, turn=degrees, field=field, metal=metal)
        for name in contrasts
    ]
    images = scan(patient, scans, rng_scan)
    # Truth in the space of the scanner, at 1 mm.
    to_head, grid = motion(patient.head.grid, scans[0]), change_spacing(patient.head.grid, (1.0, 1.0, 1.0))
    moved = {
        name: resample(mask.astype(np.float32), patient.grid, grid, to_head) > 0.5
        for name, mask in (*patient.organs.items(), ("z", patient.tumor.z), ("y", patient.tumor.y))
    }
    values = {name: value for value, name in enumerate(patient.organs, 1)}
    organs = np.zeros(grid.shape, np.uint8)
    for name, value in values.items():
        organs[moved[name]] = value
    cubic = grid.voxel_volume / 1000
    card = {
        "simulator": "independent",
        "seed": seed,
        "contrasts": list(images),
        "slice_mm": slices,
        "orientation": orientation,
        "tesla": field,
        "turned_degrees": list(degrees),
        "metal": metal,
        "core_ml": round(float(moved["y"].sum()) * cubic, 2),
        "whole_ml": round(float(moved["z"].sum()) * cubic, 2),
        "organs": values,
    }
    with new_folder(output, KIND, [labels], overwrite=overwrite) as work:
        for name, made in images.items():
            write_nifti(work / f"{name}.nii.gz", made.data, made.grid)
        write_nifti(work / "truth_organs.nii.gz", organs, grid)
        write_nifti(work / "truth_tumor.nii.gz", moved["z"].astype(np.uint8) + moved["y"], grid)
        (work / "truth.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    name = absolute(output).name
    typer.echo(f"{name}: {', '.join(images)}; core {card['core_ml']} ml, whole {card['whole_ml']} ml")
