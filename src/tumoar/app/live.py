"""Slices of a run in progress: a small picture beside its checkpoints, drawn again with each of them.

It shows the brain and what lies within a few millimeters of it, and so no face.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage

from tumoar.app.pipeline import Arrays, Keeper
from tumoar.geometry.image import Case
from tumoar.io.files import replace_file
from tumoar.model.generative import Model, select_atlas
from tumoar.report.pictures import PLANES, plane
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.errors import TumoarError

LIVE = "live.png"
MARGIN = 5.0
"""Millimeters around the brain that are shown."""
SHOWN = ("T1c", "FLAIR", "T1", "T2")
"""Contrasts, the first that there is."""
CORE, EDEMA = (230, 159, 0), (86, 180, 233)

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Live:
    """A store of checkpoints that draws what they hold; a picture that cannot be written is left out."""

    keeper: Keeper
    case: Case
    in_brain: npt.NDArray[np.bool_]
    path: Path

    def load(self, name: str) -> Arrays | None:
        """Load the arrays stored under this name, if any."""
        return self.keeper.load(name)

    def save(self, name: str, arrays: Arrays) -> None:
        """Store arrays, and draw labels that are among them."""
        self.keeper.save(name, arrays)
        if "labels_z" in arrays:
            picture = draw_slices(self.case, arrays, self.in_brain)
            with suppress(TumoarError), replace_file(self.path) as temporary:
                temporary.write_bytes(picture)


def watch_slices(keeper: Keeper, case: Case, model: Model, config: Config, folder: Path) -> Live:
    """Draw what `keeper` stores in `folder`."""
    in_brain = select_atlas(model, config).atlas.labels.in_brain
    return Live(keeper, case, np.append(in_brain, True), folder / LIVE)  # a cavity is the last, if any


def draw_slices(case: Case, labels: Mapping[str, npt.NDArray], in_brain: npt.NDArray[np.bool_]) -> bytes:
    """PNG of an axial, a coronal and a sagittal slice through the middle of the tumor, or else of the brain.

    The patient's right is on the left. Tumor of the last sample is colored.
    """
    core, tumor = labels["labels_y"] > 0, labels["labels_z"] > 0
    brain = in_brain[labels["labels_l"]] | tumor
    names = [contrast.name for contrast in case.contrasts]
    image = case.D[next((names.index(name) for name in SHOWN if name in names), 0)]
    low, high = np.nanquantile(image[brain][:: 1 + int(brain.sum()) // 100_000], (0.005, 0.995))
    at = np.argwhere(core if core.any() else tumor if tumor.any() else brain).mean(0).round().astype(int)
    tiles = [
        _draw_slice((low, high), *(plane(v, axis, at[axis]) for v in (image, brain, core, tumor)))
        for _, axis in PLANES
    ]
    height = max(len(tile) for tile in tiles)
    padded = [np.pad(tile, ((0, height - len(tile)), (0, 4), (0, 0))) for tile in tiles]
    out = BytesIO()
    PIL.Image.fromarray(np.concatenate(padded, 1).astype(np.uint8)).save(out, "png")
    return out.getvalue()


def _draw_slice(window: tuple[float, float], image: Array, brain: Array, core: Array, tumor: Array) -> Array:
    """(rows, columns, 3) a slice of a 1 mm grid around what is brain in it."""
    shown = ndimage.distance_transform_edt(~brain) <= MARGIN if brain.any() else brain
    box = ndimage.find_objects(shown.astype(np.uint8))[0] if shown.any() else (slice(0, 1), slice(0, 1))
    gray = np.clip(np.nan_to_num((image - window[0]) / max(window[1] - window[0], 1e-6)), 0, 1)
    rgb = np.repeat(255 * np.where(shown, gray, 0)[..., None], 3, axis=-1)
    for mask, color in ((tumor & ~core, EDEMA), (core, CORE)):
        rgb[mask] = 0.55 * rgb[mask] + 0.45 * np.array(color)
    return rgb[box]
