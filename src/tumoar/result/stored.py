"""Read a finished result from its folder: labels, masks and volumes in the space of the reference image."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.image import Grid, Image
from tumoar.io.files import absolute
from tumoar.io.lock import lock_output
from tumoar.io.manifest import MANIFEST, publish_folder, read_manifest, remove_leftovers
from tumoar.io.manifest_schema import RESULT, seal
from tumoar.io.nifti import read_nifti
from tumoar.io.outputs import require_empty
from tumoar.model.conformal import SHARES
from tumoar.result.masks import label_table, read_mask, require_listed, structure_names
from tumoar.result.segmentation import Volume
from tumoar.vocabulary.labels import LabelTable
from tumoar.vocabulary.notes import Note

PREDICTED = "predicted/"
NATIVE = ("native/", "_segmentation.nii.gz")


@dataclass(frozen=True, eq=False, repr=False)
class Stored:
    """A finished result on disk; `manifest` is its run.json, against which every file was checked."""

    folder: Path
    manifest: dict[str, Any] = field(repr=False)

    @property
    def status(self) -> str:
        """OK or NEEDS REVIEW."""
        return str(self.manifest["status"])

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a reviewer should know."""
        return tuple(map(Note.from_dict, self.manifest["notes"]))

    @property
    def stamps(self) -> tuple[str, ...]:
        """Marks of the run, such as "fast"."""
        return tuple(self.manifest.get("stamps", ()))

    @property
    def contrasts(self) -> tuple[str, ...]:
        """Names of the input images."""
        there = [
            name.removeprefix(NATIVE[0]).removesuffix(NATIVE[1])
            for name in self.manifest["files"]
            if name.startswith(NATIVE[0])
        ]
        order = [row["contrast"] for row in self.manifest.get("inputs", ())]
        return tuple(sorted(there, key=lambda name: order.index(name) if name in order else len(order)))

    @property
    def reference(self) -> str:
        """The image that defines the space of the result."""
        return str(self.manifest.get("reference") or "")

    @property
    def structures(self) -> tuple[str, ...]:
        """Names of all structures, margins last."""
        return tuple(structure_names(self.manifest))

    @cached_property
    def table(self) -> LabelTable:
        """Label table of the result."""
        return label_table(self.manifest)

    @cached_property
    def _map(self) -> Image:
        return read_nifti(require_listed(self.folder, self.manifest, "segmentation.nii.gz"))

    @property
    def grid(self) -> Grid:
        """Voxels of `labels`, `mask` and `probability`: those of the reference image."""
        return self._map.grid

    @property
    def labels(self) -> npt.NDArray[np.generic]:
        """(X, Y, Z) the exclusive label map: tumor over anatomy."""
        return self._map.data

    def labels_on(self, contrast: str) -> Image:
        """Label map on the voxels of an input image."""
        name = known_contrast(contrast, self.contrasts)
        return read_nifti(require_listed(self.folder, self.manifest, f"{NATIVE[0]}{name}{NATIVE[1]}"))

    def mask(self, name: str) -> npt.NDArray[np.bool_]:
        """(X, Y, Z) mask of a structure or margin, by TG-263 name; organs are not cut by tumor."""
        return np.asarray(read_mask(self.folder, self.manifest, self._known(name)).data, bool)

    def probability(self, name: str) -> npt.NDArray[np.generic]:
        """(X, Y, Z) fraction of the samples in which a voxel belongs to a structure; margins have none."""
        measured = [row["name"] for row in self.manifest["volumes"]]
        path = f"probabilities/{known_name(name, measured)}.nii.gz"
        return read_nifti(require_listed(self.folder, self.manifest, path)).data

    def predicted(self, name: str) -> npt.NDArray[np.generic]:
        """(X, Y, Z) probability that an expert's structure contains a voxel, if it is calibrated."""
        known = [
            n.removeprefix(PREDICTED).removesuffix(".nii.gz")
            for n in self.manifest["files"]
            if n.startswith(PREDICTED)
        ]
        path = f"{PREDICTED}{known_name(name, known)}.nii.gz"
        return read_nifti(require_listed(self.folder, self.manifest, path)).data

    def whole_tumor(self) -> Volume:
        """Volume of core and edema together."""
        row = self.manifest.get("whole_tumor")
        if row is None:
            raise KeyError("the result has no whole tumor")
        return volume_of(row)

    def volume(self, name: str) -> Volume:
        """Volume of a structure, as outlined, over the samples, and predicted if it is calibrated."""
        rows = (*self.manifest["volumes"], *self.manifest.get("margins", ()))
        row = next(row for row in rows if row["name"] == self._known(name))
        return volume_of(row)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Copy the result to another folder atomically; its files are checked again."""
        out = absolute(folder)
        require_empty(out, [self.folder], overwrite=overwrite, kind=RESULT)
        with lock_output(out):
            remove_leftovers(out)
            with publish_folder(out, "the result") as work:
                manifest = read_manifest(self.folder)
                for name in manifest["files"]:
                    (work / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.folder / name, work / name)
                (work / MANIFEST).write_text(seal(manifest), encoding="utf-8")

    def _known(self, name: str) -> str:
        return known_name(name, self.structures)


def volume_of(row: Mapping[str, Any]) -> Volume:
    """Volume from a row of volumes.tsv or margins.tsv."""
    if "mean_cm3" not in row:
        return Volume(float(row["outlined_cm3"]))
    central = float(row["p05_cm3"]), float(row["p95_cm3"])
    predicted = {
        share: (float(row[f"low{percent}_cm3"]), float(row[f"high{percent}_cm3"]))
        for share in SHARES
        if row.get(f"low{(percent := round(100 * share))}_cm3") is not None
    }
    return Volume(
        float(row["outlined_cm3"]),
        float(row["mean_cm3"]),
        float(row["sd_cm3"]),
        central,
        predicted=predicted,
        calibrated_on=str(row.get("calibrated_on", "")),
    )


def known_contrast(name: str, known: Sequence[str]) -> str:
    """Name of an image, found regardless of letter case."""
    same = [spelling for spelling in known if spelling.lower() == name.lower()]
    return same[0] if same else known_name(name, known)


def known_name(name: str, known: Sequence[str]) -> str:
    """Return a known name; otherwise raise a KeyError that lists the known ones."""
    if name not in known:
        raise KeyError(f"no '{name}'; there are: {', '.join(known)}")
    return name
