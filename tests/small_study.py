"""A finished result of the small head, and the series that it can be drawn on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import small_head
from rt_files import write_series
from small_result import small_result

from tumoar.geometry.image import Grid, frame_digest
from tumoar.inference.tally import Tally
from tumoar.io.dicom import digest_of, only_series
from tumoar.model.joint import Labels
from tumoar.result.folder import Options, write_result

N = small_head.SIZE
SHIFT = np.eye(4)
SHIFT[0, 3] = -5.0  # world of the FLAIR to world of the T1c


def with_organs(found):
    """The same result with every organ, the left hippocampus and the brainstem partly under tumor."""
    table, shape = found.table, found.case.grid.shape
    l, z, y = small_head.truth()
    for number, s in enumerate(s for s in table.structures if s.name not in small_head_names(table)):
        at = slice(4 + 3 * number, 6 + 3 * number), slice(4, 9), slice(20, 26)
        l[at] = table.l(s.name)
    l[26:30, 22:28, 22:28], l[33:36, 24:28, 22:30] = table.l("left hippocampus"), table.l("brainstem")
    z, y = z * table.in_brain[l], y * table.in_brain[l]
    tally = Tally(table, np.ones(shape, np.uint8))
    for _ in range(2):
        tally.add(Labels(l, z.astype(np.uint8), y.astype(np.uint8)))
    return replace(found, tallies=(tally,))


def small_head_names(table):
    return {table.structures[i].name for i in np.unique(small_head.truth()[0])}


def build(folder, *, organs=False, linked=True):
    """A result; its T1c as a series in LPS; its FLAIR, moved by 5 mm, with thick slices.

    Unless `linked`, the result does not tell the frames of reference of its images.
    """
    found = with_organs(small_result()) if organs else small_result()
    world = found.case.grid.affine
    flipped = Grid(
        (N, N, N), world @ np.array([[-1, 0, 0, N - 1], [0, -1, 0, N - 1], [0, 0, 1, 0], [0, 0, 0, 1]])
    )
    affine = flipped.affine @ np.diag([1, 1, 2.0, 1])
    affine[0, 3] += 5.0
    thick = Grid((N, N, N // 2), affine)
    values = np.random.default_rng(0).integers(0, 2000, (N, N, N)).astype(float)
    write_series(folder / "t1c", values, flipped, frame="1.2.1")
    write_series(folder / "flair", values[:, :, : N // 2], thick, frame="1.2.2")
    every_third = Grid((N, N, -(-N // 3)), flipped.affine @ np.diag([1, 1, 3.0, 1]))
    every_other = Grid((N, N, N // 2), flipped.affine @ np.diag([1, 1, 2.0, 1]))
    write_series(folder / "later", values[:, :, ::3], every_third, frame="1.2.1")
    write_series(folder / "unknown", values[:, :, : N // 2], every_other)
    given = replace(found.case.input("FLAIR"), grid=thick, to_reference=SHIFT)
    result = replace(found, case=replace(found.case, inputs=(found.case.input("T1c"), given)))
    series = {name: only_series(folder / name) for name in ("t1c", "flair", "later", "unknown")}
    inputs = [
        {"contrast": "T1c", "sha256": "of a NIfTI file", "frame": frame_digest("1.2.1")},
        {"contrast": "FLAIR", "sha256": digest_of(series["flair"]), "frame": frame_digest("1.2.2")},
    ]
    if not linked:
        inputs = [given | {"sha256": "of a NIfTI file", "frame": ""} for given in inputs]
    manifest = {"key": "k", "reference": "T1c", "inputs": inputs}
    write_result(folder / "out", result, (), manifest, Options(), lambda whole: "", [])
    return folder / "out", series
