"""A clinic's own contrasts: a file of rows as in `data/contrasts.toml`."""

from __future__ import annotations

from pathlib import Path

from tumoar.io.files import read_toml
from tumoar.io.models import find_model
from tumoar.vocabulary.contrasts import Contrast, extend_contrasts
from tumoar.vocabulary.errors import ModelFileError


def read_contrasts(path: str | Path | None, model: str | Path | None = None) -> dict[str, Contrast] | None:
    """Read contrasts from a file and add them to those in the package; None without a file."""
    if path is None:
        return None
    table = read_toml(path, "the table of contrasts")
    labels = find_model(model).labels
    try:
        return extend_contrasts(table, labels)
    except ModelFileError as refusal:
        do = "compare it with data/contrasts.toml in the package"
        raise ModelFileError(refusal.id, refusal.what, file=path, do=do) from refusal
