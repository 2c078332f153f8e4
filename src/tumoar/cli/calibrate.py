"""`tumoar calibrate`: prediction intervals from a clinic's own references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tumoar.vocabulary.errors import IntegrityError, UsageError, join_names

FEW = 19
"""References below which the coverage of intervals varies much from one set of references to another."""


def calibrate(
    results: Annotated[
        Path, typer.Argument(help="Folder with results of `tumoar segment`.", show_default=False)
    ],
    references: Annotated[
        Path,
        typer.Option(help="Folder with NAME.nii.gz for each result, or a list: result,reference."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The calibration file to write.")] = Path(
        "calibration.json"
    ),
    core: Annotated[
        str | None, typer.Option(metavar="2,3", help="Labels of the core (default: all above 1).")
    ] = None,
    organs: Annotated[
        Path | None,
        typer.Option(help="Folder with NAME/STRUCTURE.nii.gz: organs as your experts draw them."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing calibration.")] = False,
) -> None:
    """Learn from references how far experts draw from the outlines, for intervals that hold."""
    labels = _parse_core(core)

    from dataclasses import replace

    import numpy as np

    from tumoar.app.calibrate import calibrate as learn
    from tumoar.app.calibrate import compare_organs, compare_tumor, require_suited
    from tumoar.app.references import pair_references, read_organs, read_reference
    from tumoar.io.calibration import write_calibration
    from tumoar.io.files import absolute
    from tumoar.model.conformal import SHARES
    from tumoar.result.folder import read_manifest
    from tumoar.result.stored import Stored

    if absolute(output).exists() and not overwrite:
        do = "choose another name, or replace it with --overwrite"
        raise IntegrityError("B57", "the calibration file already exists", file=output, do=do)
    pairs, alone, absent = pair_references(results, references)
    for what, names in (("without a reference", alone), ("without a result", absent)):
        if names:
            typer.echo(f"{what}: {join_names(names)}")
    manifests = {folder.name: read_manifest(folder) for folder, _ in pairs}
    require_suited(manifests)
    compared, drawn = [], []
    for number, (folder, reference) in enumerate(pairs, 1):
        stored = Stored(folder, manifests[folder.name])
        masks = read_reference(reference, stored.grid, labels)
        compared.append(compare_tumor(stored, *masks, np.random.default_rng(0)))
        if compared[-1].is_apart:
            typer.echo(f"note: {folder.name}: outline and reference do not overlap; do they belong together?")
        if organs is not None:
            names = [organ.name for organ in stored.table.organs if not organ.tumor]
            given = read_organs(absolute(organs), folder.name, names, stored.grid)
            drawn.append(compare_organs(stored, given, np.random.default_rng(0)))
        typer.echo(f"{number} of {len(pairs)}: {folder.name}")
    found = learn(compared)
    if drawn:
        found = replace(found, entries=(*found.entries, *learn(drawn).entries))
    write_calibration(absolute(output), found)
    for name, numbers in (row for entry in found.entries for row in entry.structures.items()):
        count = len(numbers.displacements)
        low, high = numbers.interval(max(SHARES))
        typer.echo(f"{name}: {count} references; 90 % of borders move by {low:+.1f} to {high:+.1f} mm")
        if count < FEW:
            typer.echo(f"note: {name}: with fewer than {FEW} references, intervals may cover less or more")
    typer.echo(f"{absolute(output).name}: use it with `tumoar segment --calibration`")


def _parse_core(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            "core", "core labels must be numbers separated by commas", found=text[:40], do="as in --core 2,3"
        ) from error
    return found
