"""`tumoar simulate`: a synthetic patient with ground truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.vocabulary.errors import GeometryError, UnreadableFileError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tumoar.geometry.image import Grid

KIND = "simulation"
SMALLEST, LARGEST = 0.1, 300.0  # ml


def simulate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for images and ground truth.")],
    contrast: Annotated[
        list[str] | None, typer.Option(help="Contrast to simulate, such as T1c; may be repeated.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Label map of a head (default: drawn from the atlas).")
    ] = None,
    atlas: Annotated[
        Path | None, typer.Option(help="Atlas to draw from (default: the one in the package).")
    ] = None,
    core_ml: Annotated[float, typer.Option(min=0.0, help="Volume of the tumor core; 0 for no tumor.")] = 25.0,
    slices: Annotated[float, typer.Option(min=0.5, max=10.0, help="Slice thickness in mm.")] = 1.0,
    postop: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            help="Remove the tumor: gross, partial, surface, collapsed or blood.",
        ),
    ] = None,
    skull_stripped: Annotated[bool, typer.Option("--skull-stripped", help="Keep only the brain.")] = False,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help="Use the simulator that shares nothing with the model; --labels has FreeSurfer-like codes.",
        ),
    ] = False,
    orientation: Annotated[
        str | None, typer.Option(help="With --independent: axial, sagittal or coronal slices.")
    ] = None,
    field: Annotated[
        float | None, typer.Option(help="With --independent: field strength in tesla, 1.5 or 3.")
    ] = None,
    turn: Annotated[
        float | None,
        typer.Option(min=0.0, max=45.0, help="With --independent: scan the head again, turned by degrees."),
    ] = None,
    metal: Annotated[
        bool, typer.Option("--metal", help="With --independent: metal in the teeth, which shows on CT.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same patient.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing simulation.")] = False,
) -> None:
    """Simulate a patient: head, tumor, images and ground truth."""
    import numpy as np

    from tumoar.io.files import absolute
    from tumoar.io.nifti import write_nifti
    from tumoar.io.outputs import new_folder, require_empty
    from tumoar.simulate import Acquisition, draw_blob, draw_place
    from tumoar.simulate import simulate as make
    from tumoar.simulate.surgery import WAYS, Surgery
    from tumoar.simulate.tissue import default_tissues
    from tumoar.vocabulary.labels import add_cavity, default_labels

    known = {name.lower(): name for name in default_tissues().scans}
    names = contrast or ["T1c", "FLAIR", "T2"]
    for name in names:
        if name.lower() not in known:
            do = f"use one of {', '.join(known.values())}"
            raise UsageError("contrast", f"contrast '{name}' cannot be simulated", do=do)
        if [known[other.lower()] for other in names if other.lower() in known].count(known[name.lower()]) > 1:
            raise UsageError("contrast", f"{known[name.lower()]} is given twice", do="give it once")
    if not independent and (orientation is not None or field is not None or turn is not None or metal):
        do = "add --independent"
        raise UsageError(
            "independent", "--orientation, --field, --turn and --metal need --independent", do=do
        )
    if core_ml != 0 and not SMALLEST <= core_ml <= LARGEST:
        do = f"use {SMALLEST:g} to {LARGEST:g} ml, or 0 for no tumor"
        raise UsageError("core", "no such tumor core can be drawn", found=f"{core_ml:g} ml", do=do)
    if postop is not None and (postop not in WAYS or core_ml == 0):
        do = f"use {', '.join(WAYS)}, with a tumor"
        raise UsageError("postop", "this tumor cannot be removed", found=postop, do=do)
    if independent:
        from tumoar.cli.simulate_independent import simulate_independent

        if labels is None or atlas is not None or postop is not None or skull_stripped:
            do = "give --labels, and neither --atlas, --postop nor --skull-stripped"
            raise UsageError("independent", "--independent simulates a head from its label map", do=do)
        chosen = [known[name.lower()] for name in names]
        simulate_independent(
            output,
            labels,
            chosen,
            core_ml=core_ml,
            slices=slices,
            orientation=orientation or "axial",
            field=field or 3.0,
            turn=turn,
            metal=metal,
            seed=seed,
            overwrite=overwrite,
        )
        return
    surgery = None if postop is None else Surgery(postop)
    given = [path for path in (labels, atlas) if path is not None]
    require_empty(output, given, overwrite=overwrite, kind=KIND)
    table = default_labels() if surgery is None else add_cavity(default_labels())
    rng_head, rng_tumor, rng_scan = np.random.default_rng(seed).spawn(3)
    label_map, grid = _read(labels) if labels else _draw(atlas, rng_head)
    tumor = None
    if core_ml > 0:
        if not (label_map == table.indices[table.l("white matter")]).any():
            do = "give another one, or --core-ml 0"
            raise UnreadableFileError(
                "labels-unknown", "the label map has no white matter for a tumor", file=labels, do=do
            )
        blob = draw_blob(rng_tumor, core_ml=core_ml, spacing=float(grid.spacing.mean()))
        tumor = draw_place(blob, label_map, table, rng_tumor)
    thick = (float(grid.spacing[0]), float(grid.spacing[1]), slices)
    scans = [Acquisition(known[name.lower()], thick) for name in names]
    images, truth = make(
        label_map, grid, tumor, scans, table, rng_scan, skull_stripped=skull_stripped, surgery=surgery
    )

    card = {
        "seed": seed,
        "contrasts": list(images),
        "slice_mm": slices,
        "skull_stripped": skull_stripped,
        "core_ml": round(float(truth.y.sum()) * grid.voxel_volume / 1000, 2),
        "whole_ml": round(float(truth.z.sum()) * grid.voxel_volume / 1000, 2),
    }
    if surgery is not None:
        card["cavity_ml"] = round(float(truth.cavity.sum()) * grid.voxel_volume / 1000, 2)
    with new_folder(output, KIND, given, overwrite=overwrite) as work:
        for name, image in images.items():
            write_nifti(work / f"{name}.nii.gz", image.data, image.grid)
        classes = np.where(truth.cavity, np.uint8(3), truth.z.astype(np.uint8) + truth.y)
        for name, volume in (("labels", truth.l), ("tumor", classes)):
            write_nifti(work / f"truth_{name}.nii.gz", volume, truth.grid)
        write_nifti(work / "truth_segmentation.nii.gz", truth.exclusive, truth.grid)
        (work / "truth.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    name = absolute(output).name
    typer.echo(f"{name}: {', '.join(images)}; core {card['core_ml']} ml, whole {card['whole_ml']} ml")


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], Grid]:
    import numpy as np

    from tumoar.geometry.orientation import reorient
    from tumoar.io.nifti import read_nifti
    from tumoar.vocabulary.labels import default_labels

    image, _ = reorient(read_nifti(path))
    unknown = sorted(set(np.unique(image.data).tolist()) - set(default_labels().indices.tolist()))
    if unknown:
        raise UnreadableFileError(
            "labels-unknown",
            "not a label map of this project",
            file=path,
            found=", ".join(f"{v:g}" for v in unknown[:5]),
            do="prepare it with `tumoar train prepare`",
        )
    if np.abs(image.grid.spacing - 1).max() > 0.5:
        raise GeometryError(
            "labels-spacing", "label map not at about 1 mm", file=path, found=image.grid.spacing
        )
    return image.data.astype(np.uint8), image.grid


def _draw(path: Path | None, rng: np.random.Generator) -> Any:
    from tumoar.io.models import default_model
    from tumoar.io.store import load_atlas
    from tumoar.simulate.head import draw_head

    return draw_head(default_model().atlas if path is None else load_atlas(path), rng)
