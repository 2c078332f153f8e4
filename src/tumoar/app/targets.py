"""Add CTV and PTV to a finished result and to its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tumoar.io.rois import look_of_target
from tumoar.radiotherapy.margins import Margins
from tumoar.radiotherapy.targets import add_margins
from tumoar.report import add_targets, grid_of_page, read_page, render
from tumoar.result.folder import REPORT, add_files, read_manifest
from tumoar.result.masks import label_table, read_mask, resample_mask


def add_margins_to_result(out: Path, margins: Margins) -> list[dict[str, Any]]:
    """Write masks and table of CTV and PTV, and show them in the report; return the rows of the table."""
    page = read_page(out / REPORT)  # first, so that nothing is written if it is damaged
    rows = add_margins(out, margins)
    manifest = read_manifest(out)
    grid = grid_of_page(page)
    masks = [resample_mask(read_mask(out, manifest, row["name"]), grid, np.eye(4)) for row in rows]
    color, _ = look_of_target(label_table(manifest))
    with add_files(out, manifest) as work:
        (work / REPORT).write_text(render(add_targets(page, rows, masks, color)), encoding="utf-8")
    return rows
