"""`tumoar evaluate`: outlines against references, one patient or many, and against other outlines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.errors import GeometryError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tumoar.evaluate import Scores
    from tumoar.image import Grid
    from tumoar.io.rtstruct import StructureSet
    from tumoar.labels import LabelTable

    Values = Mapping[str, Sequence[int]]
    Map = tuple[npt.NDArray[np.int64], Grid]

KIND = "set of scores"
SHOWN = ("dice", "hausdorff95", "surface_dice_2mm", "volume", "reference_volume")


def evaluate(
    results: Annotated[list[Path], typer.Argument(help="Result folders, or label maps.", show_default=False)],
    reference: Annotated[
        list[Path],
        typer.Option(help="Label map, mask or RTSTRUCT of each result, in the same order."),
    ],
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=1,3",
            help="What values of the references mean; GTV+Edema=1,2 for a union. Default: as in results.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Other results of the same patients, to compare with.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables and box plots.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the scores that are there.")
    ] = False,
) -> None:
    """Dice, Hausdorff distance (95 %), surface distances and volumes against references."""
    from tumoar.io.outputs import require_empty
    from tumoar.labels import default_labels

    given = [*results, *reference, *(against or [])]
    if output is not None:
        require_empty(output, given, overwrite=overwrite, kind=KIND)
    table = default_labels()
    known = [o.name for o in table.organs]
    meaning = parse_values(values or [], known)
    for others, name in ((reference, "--reference"), (against, "--against")):
        if others is not None and len(others) != len(results):
            what = f"{len(results)} results but {len(others)} times {name}"
            raise UsageError("evaluate", what, do="give one for each result, in the same order")
    ours = [score(a, b, meaning) for a, b in zip(results, reference)]
    rows = _rows(results, ours)
    for row in rows:
        cells = "  ".join(f"{name} {row[name]}" for name in SHOWN)
        typer.echo(f"{row['result']:20} {row['structure']:14} {cells}")
    tables: dict[str, Sequence[Mapping[str, Any]]] = {"scores.tsv": rows}
    if len(ours) > 1:
        tables["summary.tsv"] = _summaries(ours)
        for line in tables["summary.tsv"]:
            typer.echo(
                f"{line['structure']:14} {line['score']:18} mean {line['mean']}  median {line['median']}"
            )
    theirs = [score(a, b, meaning) for a, b in zip(against, reference)] if against else None
    if theirs:
        tables["against.tsv"] = _rows(against or [], theirs)
        tables["paired.tsv"] = _paired(ours, theirs)
        for pair in tables["paired.tsv"]:
            typer.echo(
                f"{pair['structure']:14} {pair['score']:12} {pair['difference']:+} "
                f"(95 % {pair['low']:+} to {pair['high']:+}, {pair['patients']} patients)"
            )
    if output is not None:
        _write(output, tables, ours, theirs, given, overwrite=overwrite)


def parse_values(given: Sequence[str], known: Sequence[str]) -> Values:
    """Structures, or unions of them, and the values that stand for them in the references."""
    out: dict[str, Sequence[int]] = {}
    for text in given:
        name, _, numbers = text.partition("=")
        if not set(name.split("+")) <= set(known):
            raise UsageError("structures", f"no structure '{name}'", do=f"use {', '.join(known)}")
        try:
            out[name] = [int(n) for n in numbers.split(",")]
        except ValueError as error:
            raise UsageError("evaluate", f"no values in '{text}'", do="write NAME=1,3") from error
    return out


def score(result: Path, reference: Path, meaning: Values) -> dict[str, Scores]:
    """Every structure of one result: of `meaning`, or else of our own label table, or of a structure set."""
    import numpy as np

    from tumoar.evaluate import compare, compare_organs, organ_mask
    from tumoar.io.nifti import SUFFIXES, read_nifti
    from tumoar.labels import default_labels

    if not reference.name.endswith((*SUFFIXES, ".hdr", ".img")):
        return _score_contours(result, reference)
    image = read_nifti(reference)
    truth = np.rint(image.data).astype(np.int64)
    found, grid = _label_map(result, image.grid)
    table = default_labels()
    if not meaning:
        _require_ours(truth, table, reference)
        return compare_organs(table, found, truth, grid.spacing)
    return {
        name: compare(
            np.logical_or.reduce([organ_mask(table, table.organ(n), found) for n in name.split("+")]),
            np.isin(truth, list(numbers)),
            grid.spacing,
        )
        for name, numbers in meaning.items()
    }


def _score_contours(result: Path, reference: Path) -> dict[str, Scores]:
    """The structures of an RTSTRUCT file that have names of ours, on the image they were drawn on."""
    from tumoar.contours import filled
    from tumoar.evaluate import compare, organ_mask
    from tumoar.io.rtstruct import read_rtstruct
    from tumoar.labels import default_labels

    table, drawn = default_labels(), read_rtstruct(reference)
    organs = {organ.name.casefold(): organ for organ in table.organs}
    known = [o for o in drawn.outlines if o.name.casefold() in organs]
    if not known:
        raise UsageError(
            "evaluate",
            "no structure of ours in the reference",
            file=reference,
            do=f"name them {', '.join(o.name for o in table.organs)}",
        )
    refusal: GeometryError | None = None
    for found, grid in _maps(result, drawn):
        try:
            truth = {organs[o.name.casefold()]: filled(o, grid) > 0.5 for o in known}
        except GeometryError as error:  # drawn on another image of the result
            refusal = error
            continue
        return {
            organ.name: compare(organ_mask(table, organ, found), mask, grid.spacing)
            for organ, mask in truth.items()
        }
    raise refusal or GeometryError(
        "B33",
        "contours lie in another frame of reference than the result's images",
        file=reference,
        do="give contours on an image that was segmented",
    )


def _maps(result: Path, drawn: StructureSet) -> Iterator[Map]:
    """Label maps of a result that the contours may lie on: those in their frame of reference, if known."""
    import numpy as np

    from tumoar.image import frame_digest
    from tumoar.io.identity import require_patient
    from tumoar.io.nifti import read_nifti
    from tumoar.io.results import read_manifest

    paths = [result]
    if result.is_dir():
        manifest = read_manifest(result)
        require_patient(manifest.get("patient", {}), manifest.get("key", ""), drawn.person, "the reference")
        frames = {i["contrast"]: i.get("frame") for i in manifest.get("inputs", [])}
        names = [manifest["reference"], *(n for n in frames if n != manifest["reference"])]
        ours = frame_digest(drawn.frame)
        fitting = [n for n in names if not ours or not frames.get(n) or frames[n] == ours]
        paths = [result / "native" / f"{n}_segmentation.nii.gz" for n in fitting]
    for path in paths:
        image = read_nifti(path)
        yield image.data.astype(np.int64), image.grid


def _require_ours(truth: npt.NDArray[np.int64], table: LabelTable, path: Path) -> None:
    """Values of another convention must not be read as ours: 1 in a tumor map is not white matter."""
    import numpy as np

    values = set(np.unique(truth).tolist())
    ours = {*table.indices.tolist(), *(t.index for t in table.tumor)}
    sided = {s.index for s in table.structures if s.side and s.in_brain}
    if not values <= ours or not sided <= values:
        raise UsageError(
            "evaluate",
            "reference is not a label map of ours",
            file=path,
            found=f"values {', '.join(map(str, sorted(values)[:8]))}",
            do="say what its values mean, as in --values GTV=2,3",
        )


def _label_map(path: Path, wanted: Grid) -> Map:
    """The result's label map that lies on the reference's grid: its own, or that of one of its inputs."""
    import numpy as np

    from tumoar.io.nifti import read_nifti
    from tumoar.io.results import read_manifest

    paths = [path]
    if path.is_dir():
        read_manifest(path)
        paths = [path / "segmentation.nii.gz", *sorted((path / "native").glob("*.nii.gz"))]
    for candidate in paths:
        image = read_nifti(candidate)
        if image.grid.shape == wanted.shape and np.allclose(image.grid.affine, wanted.affine, atol=1e-3):
            return image.data.astype(np.int64), image.grid
    raise GeometryError(
        "evaluate-grid",
        "reference lies on the grid of none of the result's images",
        file=path,
        found=f"{wanted.shape} voxels",
        do="draw it on an image that was given, or resample it there",
    )


def _rows(paths: Sequence[Path], scores: Sequence[Mapping[str, Scores]]) -> list[dict[str, Any]]:
    return [
        {
            "result": path.name,
            "structure": name,
            **{key: round(value, 4) for key, value in found.as_dict().items()},
        }
        for path, of_patient in zip(paths, scores)
        for name, found in of_patient.items()
    ]


def _summaries(scores: Sequence[Mapping[str, Scores]]) -> list[dict[str, Any]]:
    from tumoar.evaluate import summarize

    rows = []
    for name in scores[0]:
        for key, (mean, median) in summarize([s[name] for s in scores]).items():
            row = {"structure": name, "score": key, "mean": round(mean, 4), "median": round(median, 4)}
            rows.append(row)
    return rows


def _paired(
    ours: Sequence[Mapping[str, Scores]], theirs: Sequence[Mapping[str, Scores]]
) -> list[dict[str, Any]]:
    import numpy as np

    from tumoar.evaluate import paired

    rows = []
    for name in ours[0]:
        for key in ("dice", "hausdorff95"):
            a, b = (np.array([getattr(s[name], key) for s in side]) for side in (ours, theirs))
            mean, low, high, count = paired(a, b, np.random.default_rng(0))
            figures = {"difference": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}
            rows.append({"structure": name, "score": key, **figures, "patients": count})
    return rows


def _write(
    folder: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    ours: Sequence[Mapping[str, Scores]],
    theirs: Sequence[Mapping[str, Scores]] | None,
    given: Sequence[Path],
    *,
    overwrite: bool,
) -> None:
    from tumoar.io.files import absolute
    from tumoar.io.outputs import new_folder
    from tumoar.io.results import write_table
    from tumoar.report.boxes import box_plots

    with new_folder(folder, KIND, given, overwrite=overwrite) as work:
        for name, rows in tables.items():
            write_table(work / name, rows)
        box_plots(work / "boxes.png", {"this": ours} | ({"against": theirs} if theirs else {}))
    typer.echo(f"{absolute(folder).name}: {', '.join([*tables, 'boxes.png'])}")
