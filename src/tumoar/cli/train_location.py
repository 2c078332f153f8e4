"""`tumoar train location`: measure where tumors occur from label maps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.vocabulary.errors import GeometryError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tumoar.geometry.image import Grid
    from tumoar.model.atlas import Atlas


def location(
    label_maps: Annotated[
        list[Path],
        typer.Argument(help="Tumor label maps that share one space; any label is tumor.", show_default=False),
    ],
    t1c: Annotated[
        list[Path],
        typer.Option(help="T1c of a patient in that space, to place the atlas on; may be repeated."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    left_out: Annotated[list[str] | None, typer.Option(help="Patient not to use; may be repeated.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model with the atlas (default: the package's).")] = None,
) -> None:
    """Measure where tumors occur in the atlas, for the prior of their location."""
    import numpy as np

    from tumoar.app.segment import load
    from tumoar.io.outputs import require_new_model
    from tumoar.io.store import Section, save_sections
    from tumoar.train.location import measure_location
    from tumoar.version import __version__

    require_new_model(output)
    atlas = load(model).atlas
    counts, grid, subjects = count_tumors(label_maps, set(left_out or ()))
    affine = np.mean([place_on(path, atlas) for path in t1c], axis=0)
    found = measure_location(counts, grid, affine, atlas)
    card = {
        "command": "tumoar train location LABEL_MAPS --t1c IMAGES",
        "version": __version__,
        "subjects": subjects,
        "left_out": sorted(left_out or ()),
        "images": len(t1c),
    }
    section = Section({"frequency": found.frequency, "affine": found.affine}, {"provenance": card})
    typer.echo(f"{output} {save_sections(output, {'location': section})}")


def count_tumors(paths: list[Path], left_out: set[str]) -> tuple[npt.NDArray[np.float32], Grid, list[str]]:
    """Patients with tumor in each voxel, the common grid, and the patients; time points share a vote."""
    from collections import Counter

    import numpy as np

    from tumoar.geometry.orientation import reorient
    from tumoar.io.nifti import read_nifti
    from tumoar.train.shape_data import patient_of

    patients = [patient_of(path.name.split(".")[0]) for path in paths]
    used = [(path, patient) for path, patient in zip(paths, patients) if patient not in left_out]
    if not used:
        raise UsageError("masks", "no label map is left", do="give more label maps, or leave out fewer")
    times = Counter(patient for _, patient in used)
    grid: Grid | None = None
    counts = np.zeros(0, np.float32)
    for path, patient in used:
        image, _ = reorient(read_nifti(path))
        if grid is None:
            grid, counts = image.grid, np.zeros(image.grid.shape, np.float32)
        if image.grid.shape != grid.shape or not np.allclose(image.grid.affine, grid.affine, atol=0.01):
            raise GeometryError(
                "grid",
                "label maps must share one grid",
                file=path,
                found=f"{image.grid.shape}, first voxel at {image.grid.affine[:3, 3].round(1).tolist()}",
                do="leave it out, or resample it to the grid of the first",
            )
        counts += (image.data.astype(np.float32) > 0) / np.float32(times[patient])
    if grid is None or not counts.any():
        raise UsageError("masks", "there is no tumor in the label maps", do="give label maps with tumor")
    return counts, grid, sorted(times)


def place_on(path: Path, atlas: Atlas) -> npt.NDArray[np.float64]:
    """(4, 4) from world coordinates of the atlas to those of an image."""
    from tumoar.io.images import read_image
    from tumoar.placement.affine import place_affine
    from tumoar.preprocess.case import build_case

    return place_affine(build_case({"T1c": read_image(path)}), atlas).matrix
