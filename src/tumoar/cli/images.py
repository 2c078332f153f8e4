"""Images on the command line: FILE:CONTRAST, a file or a folder with a DICOM series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tumoar.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from tumoar.geometry.image import Image
    from tumoar.vocabulary.contrasts import Contrast


class UseForm(StrEnum):
    """Which form of a header to use."""

    s = "s"
    q = "q"


OwnContrasts = Annotated[
    Path | None,
    typer.Option("--contrasts", metavar="FILE", help="TOML file with additional or changed contrasts."),
]


def parse_images(
    given: Iterable[str], contrasts: Mapping[str, Contrast] | None = None
) -> Iterator[tuple[str, Path]]:
    """Parse FILE:CONTRAST; repeated contrasts are numbered, "other", "other-2"."""
    from tumoar.vocabulary.contrasts import find_contrast

    counts: dict[str, int] = {}
    for text in given:
        file, _, contrast = text.rpartition(":")
        if not file:
            raise UsageError(
                "images", "image without a contrast", file=text, do="write --image FILE:CONTRAST"
            )
        name = find_contrast(contrast, contrasts).name
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}-{counts[name]}"), Path(file)


def read_images(
    given: Iterable[str],
    use_form: UseForm | None = None,
    contrasts: Mapping[str, Contrast] | None = None,
) -> dict[str, Image]:
    """Read each FILE:CONTRAST, by name."""
    from tumoar.io.images import read_scans

    files = dict(parse_images(given, contrasts))
    scans = read_scans(files, use_form=None if use_form is None else use_form.value)
    return {name: scan.image for name, scan in scans.items()}
