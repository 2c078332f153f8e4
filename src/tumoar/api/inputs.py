"""Images of a patient and the model, for Python users."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from tumoar.geometry import image
from tumoar.io.contrasts import read_contrasts
from tumoar.io.images import read_scans
from tumoar.io.models import SHIPPED, load_model, shipped_model
from tumoar.model import generative
from tumoar.preprocess.case import build_case
from tumoar.vocabulary.errors import UsageError


def as_kind(kind: type, value: Any, **more: Any) -> Any:
    """Copy a dataclass instance into a subclass, with further fields."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(value)}, **more)


class Case(image.Case):
    """Images of a patient on one grid."""

    @classmethod
    def from_files(
        cls,
        *,
        reference: str | None = None,
        register: bool = True,
        skull_stripped: bool | None = None,
        contrasts: str | Path | None = None,
        **files: str | Path,
    ) -> Self:
        """Build a case from images named by contrast (t1, t1c, t2, flair, dir, ct, other).

        Each is a NIfTI file or a folder with a DICOM series. `contrasts` is a file with further contrasts.
        """
        images = {name: scan.image for name, scan in read_scans(files).items()}
        case = build_case(
            images,
            reference=reference,
            register=register,
            skull_stripped=skull_stripped,
            contrasts=read_contrasts(contrasts),
        )
        found: Self = as_kind(cls, case)
        return found

    def __repr__(self) -> str:
        head = "skull-stripped" if self.skull_stripped else "whole head"
        names = ", ".join(contrast.name for contrast in self.contrasts)
        size = "×".join(map(str, self.grid.shape))
        return f"Case({names}; {head}, {size} mm, in the space of {self.reference})"


class Model(generative.Model):
    """Atlas and shape priors."""

    @classmethod
    def default(cls, name: str = "default") -> Self:
        """Load a model in the package: `default`, or `brain` with all structures of the brain."""
        if name not in SHIPPED:
            raise UsageError(
                "model", "no such model in the package", found=name, do=f"use {' or '.join(SHIPPED)}"
            )
        found: Self = as_kind(cls, shipped_model(name))
        return found

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a model file made by `tumoar train combine`."""
        found: Self = as_kind(cls, load_model([path]))
        return found

    def __repr__(self) -> str:
        return f"Model({', '.join(organ.name for organ in self.labels.organs)})"
