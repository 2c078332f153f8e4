"""Add labels for 3D Slicer and ITK-SNAP to a finished result, on the voxels of its reference image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tumoar.io.nifti import read_nifti
from tumoar.io.viewers import write_color_table, write_itksnap, write_seg_nrrd
from tumoar.radiotherapy.export import ordered_names, roi_of
from tumoar.result.folder import add_files, label_rows, read_manifest
from tumoar.result.masks import label_table, read_mask, require_listed, same_voxels
from tumoar.vocabulary.errors import IntegrityError

SLICER, ITKSNAP = "slicer", "itksnap"


def export_labels(out: Path, *, slicer: bool, itksnap: bool) -> list[str]:
    """Add the files of the chosen programs; return their names.

    The label descriptions and the color table belong to `segmentation.nii.gz`. The segmentation of 3D Slicer
    holds every structure, organs not cut by tumor.
    """
    manifest = read_manifest(out)
    table = label_table(manifest)
    rows = label_rows(table)
    with add_files(out, manifest) as work:
        if slicer:
            (work / SLICER).mkdir()
            write_color_table(work / SLICER / "segmentation.ctbl", rows)
            grid = read_nifti(require_listed(out, manifest, "segmentation.nii.gz")).grid
            rois = []
            for name in ordered_names(manifest, table):
                image = read_mask(out, manifest, name)
                if not same_voxels(image.grid, grid):
                    raise IntegrityError(
                        "result",
                        "a mask does not lie on the voxels of its result",
                        file=f"{name}.nii.gz",
                        do="run it again",
                    )
                rois.append(roi_of(table, name, np.asarray(image.data, bool)))
            write_seg_nrrd(work / SLICER / "structures.seg.nrrd", rois, grid)
        if itksnap:
            (work / ITKSNAP).mkdir()
            write_itksnap(work / ITKSNAP / "segmentation.label.txt", rows)
        return [path.relative_to(work).as_posix() for path in sorted(work.rglob("*")) if path.is_file()]
