"""Add CTV and PTV to the data of a report: lines in slices and pictures, rows in the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tumoar.geometry.image import Grid
from tumoar.report.lines import OF_TARGETS, Line
from tumoar.report.pictures import pictures
from tumoar.report.volumes import pack_line, unpack


def grid_of_page(data: Mapping[str, Any]) -> Grid:
    """Voxels of all volumes of a page."""
    X, Y, Z = data["grid"]["shape"]
    return Grid((X, Y, Z), np.array(data["grid"]["affine"], float))


def add_targets(
    data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], masks: Sequence[Any], color: str
) -> dict[str, Any]:
    """The data with CTV and PTV, given by rows of margins.tsv and masks on the voxels of the page."""
    grid = grid_of_page(data)
    new = [Line(row["name"], color, OF_TARGETS[row["name"]], mask) for row, mask in zip(rows, masks)]
    kept = [row for row in data.get("lines", ()) if row["name"] not in OF_TARGETS]
    lines = [Line(r["name"], r["color"], r["style"], unpack(r["nifti"], grid) > 0) for r in kept] + new
    targets = [
        {
            "name": row["name"],
            "color": color,
            "style": line.style,
            "outlined": float(row["outlined_cm3"]),
            "how": str(row["how"]),
        }
        for row, line in zip(rows, new)
    ]
    images = {c["name"]: unpack(c["nifti"], grid) for c in data["contrasts"]}
    first = data.get("shown_first")
    images = dict(sorted(images.items(), key=lambda item: item[0] != first))
    at = np.clip(np.rint(grid.index(np.array(data["center"]))), 0, np.array(grid.shape) - 1).astype(int)
    return {
        **data,
        "lines": [*kept, *(pack_line(line, grid) for line in new)],
        "targets": targets,
        "pictures": pictures(images, unpack(data["labels"], grid), data["legend"], at, lines),
    }
