"""`tumoar train prepare` and `tumoar train atlas`: train an atlas from label maps of heads."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tumoar.cli.cohort import Insecure, SchedulerAddress, TlsCa, TlsCert, TlsKey, cluster
from tumoar.vocabulary.errors import IntegrityError, UnreadableFileError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tumoar.geometry.image import Image
    from tumoar.model.atlas import Atlas
    from tumoar.train.align import Alignment
    from tumoar.train.atlas import AtlasInfo, AtlasSettings, AtlasState
    from tumoar.vocabulary.labels import LabelTable


def prepare(
    label_maps: Annotated[list[Path], typer.Argument(help="Whole-head label maps.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the prepared label maps.")],
    table: Annotated[Path | None, typer.Option(help="Table of source codes (TOML).")] = None,
    labels: Annotated[Path | None, typer.Option(help="Table of structures (TOML).")] = None,
    parts: Annotated[
        Path | None, typer.Option(help="Table of parts of structures (TOML), such as data/brain.toml.")
    ] = None,
    clinical: Annotated[
        bool, typer.Option("--clinical", help="Draw organs as planners do, see docs/organs.md.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing label maps.")] = False,
) -> None:
    """Convert label maps to our labels and list volumes outside the published range."""
    from tumoar.io.files import read_toml
    from tumoar.io.nifti import write_nifti
    from tumoar.io.outputs import new_folder
    from tumoar.train.clinical import clinical_rules, relabel
    from tumoar.train.head_table import default_heads, parse_heads, refine_heads
    from tumoar.train.prepare import find_out_of_range, measure_volumes, prepare_head

    structures = _labels(labels, parts)
    heads = default_heads() if table is None else parse_heads(read_toml(table, "the table"))
    if parts is not None:
        heads = refine_heads(heads, read_toml(parts, "the table"))
    if len({path.name for path in label_maps}) < len(label_maps):
        raise UsageError("heads", "two label maps have one name", do="rename one of them")
    with new_folder(output, "set of label maps", label_maps, overwrite=overwrite) as work:
        for path in label_maps:
            image = _read(path)
            source: npt.NDArray[np.integer] = _integers(image)
            if clinical:
                source = relabel(source, image.grid, heads, clinical_rules(), name=path.name)
            prepared = prepare_head(source, image.grid, heads, structures, name=path.name)
            write_nifti(work / path.name, prepared, image.grid)
            odd = find_out_of_range(measure_volumes(prepared, image.grid, structures), heads)
            remarks = [
                f"{name} {found:.2f} ml, published {low:g}-{high:g}"
                for name, (found, low, high) in odd.items()
            ]
            typer.echo(
                f"{path.name}: "
                + ("; ".join(remarks) if remarks else "all volumes within the published range")
            )


def atlas(
    label_maps: Annotated[list[Path], typer.Argument(help="Prepared label maps.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    labels: Annotated[Path | None, typer.Option(help="Table of structures (TOML).")] = None,
    parts: Annotated[
        Path | None, typer.Option(help="Table of parts of structures (TOML), such as data/brain.toml.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mesh and the order of edge collapses.")] = 0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint file; an interrupted run is resumed.")
    ] = None,
    everywhere: Annotated[
        bool,
        typer.Option(help="Allow unspecified tissue in every node, as in the paper, not only in the brain."),
    ] = False,
    source: Annotated[str, typer.Option(help="Origin and license of the label maps, for the card.")] = "",
    held_out: Annotated[
        list[str] | None, typer.Option(help="Label map reserved for tests; may be repeated.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Model file to go on from: its mesh stays, label maps may define organs otherwise."
        ),
    ] = None,
    keep_reference: Annotated[
        bool,
        typer.Option(
            "--keep-reference",
            help="With --start: its nodes stay in place, so that what is known in its space stays valid.",
        ),
    ] = False,
    iterations: Annotated[
        int | None, typer.Option(min=1, max=1000, help="With --start: iterations (default 20).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Heads to fit in parallel (default 1).")
    ] = None,
    scheduler: SchedulerAddress = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure_scheduler: Insecure = False,
) -> None:
    """Train the mesh atlas from prepared label maps (see `train prepare`)."""
    from tumoar.io.outputs import require_new_model
    from tumoar.io.store import save_atlas
    from tumoar.train.atlas import AtlasSettings, measure, to_atlas
    from tumoar.train.refine import refine_settings
    from tumoar.version import __version__

    require_new_model(output)
    where = cluster(scheduler, tls_ca, tls_cert, tls_key, insecure_scheduler)
    heads, kept = [path.name for path in label_maps], held_out or []
    if set(heads) & set(kept):
        raise UsageError(
            "heads",
            "a label map reserved for tests cannot be used for training",
            found=sorted({*heads} & {*kept}),
        )
    if len(label_maps) < 2:
        raise UsageError("heads", "an atlas needs at least two label maps", found=len(label_maps))
    if iterations is not None and start is None:
        raise UsageError("start", "--iterations needs --start", do="name the atlas to go on from")
    if keep_reference and start is None:
        raise UsageError("start", "--keep-reference needs --start", do="name the atlas to go on from")
    structures, settings = _labels(labels, parts), AtlasSettings()
    before = None if start is None else _start(start, structures)
    start_atlas = None if before is None else before[0]
    maps, common = align_maps(label_maps, structures, start_atlas, adapt=not keep_reference)
    with ExitStack() as open_until_trained:
        each = None
        if where is not None:
            from tumoar.cohort.engine import connect, spread

            each = spread(open_until_trained.enter_context(connect(where)), 1)
        elif workers is not None:
            from tumoar.cohort.local import spread_here

            threads = max(1, (os.cpu_count() or 1) // workers)
            each = open_until_trained.enter_context(spread_here(min(workers, len(heads)), threads))
        command = f"tumoar train atlas <heads> --seed {seed}" + (" --everywhere" if everywhere else "")
        command += "" if parts is None else f" --parts {parts.name}"
        if before is not None:
            count = 20 if iterations is None else iterations
            settings = refine_settings(settings, count, keep_reference=keep_reference)
            command += f" --start <atlas> --iterations {count}"
            command += " --keep-reference" if keep_reference else ""
        state = train_with_progress(maps, structures, settings, seed, checkpoint, each, before)
    provenance = {
        "heads": heads,
        "held_out": kept,
        "command": command,
        **({} if before is None else {"start": before[1]}),
        "version": __version__,
        "source": source,
        "seed": seed,
        "figures": {k: round(v, 5) for k, v in asdict(measure(state, maps, settings)).items()},
        **common.to_card(),
    }
    finished = to_atlas(state, maps, structures, settings, provenance, everywhere=everywhere)
    typer.echo(f"{output} {save_atlas(output, finished)}")


def align_maps(
    paths: list[Path], labels: LabelTable, start: Atlas | None = None, *, adapt: bool = True
) -> tuple[npt.NDArray[np.uint8], Alignment]:
    """(S, X, Y, Z) heads in a common box, or an atlas's; values are positions among the trained labels.

    Landmarks of an atlas to start from are adapted to these heads.
    """
    import numpy as np

    from tumoar.train.align import Alignment, align
    from tumoar.train.prepare import require_labels
    from tumoar.train.refine import adapt_alignment

    heads = []
    for path in paths:
        image = _read(path)
        values = _integers(image)
        require_labels(values, image.grid, labels, path.name)
        heads.append(values.astype(np.uint8))
    if start is None:
        common = align(heads, labels)
    else:
        common = Alignment.of_card(start.provenance, start.labels)
        common = adapt_alignment(common, heads, labels) if adapt else common
    return np.stack([common.place(head, labels) for head in heads]), common


def train_with_progress(
    maps: npt.NDArray[np.uint8],
    labels: LabelTable,
    settings: AtlasSettings,
    seed: int,
    checkpoint: Path | None,
    each: Callable[..., list[Any]] | None = None,
    start: tuple[Atlas, str] | None = None,
) -> AtlasState:
    """Train with a progress bar, resuming from a checkpoint of the same run; return the last state.

    `start` is the atlas to go on from, if any, and the digest of its file.
    """
    from rich.progress import Progress

    from tumoar.train.atlas import plan, run_serially, train
    from tumoar.train.refine import begin_from

    run = identity(maps, labels, settings, seed, "" if start is None else start[1])
    state = None if checkpoint is None or not checkpoint.exists() else load_state(checkpoint, run)
    weights = [stage.weight for stage in plan(settings)]
    with Progress() as progress:
        bar = progress.add_task("atlas", total=sum(weights))
        if state is None and start is not None:
            state = begin_from(start[0], maps, labels, settings, each or run_serially)
        progress.update(bar, completed=0 if state is None else sum(weights[: state.done]))
        for after, info in train(maps, labels, settings, seed, state, each or run_serially):
            state = after
            progress.update(
                bar,
                completed=sum(weights[: info.done]),
                description=_format_info(info),
            )
            if checkpoint is not None:
                save_state(checkpoint, state, run)
    if state is None:
        raise UsageError("plan", "the settings have no training step")
    return state


def _format_info(info: AtlasInfo) -> str:
    cost = info.figures.data + info.figures.prior
    return f"{info.stage.kind}, {info.figures.nodes} nodes, {cost:.4f} nats/voxel"


def save_state(path: Path, state: AtlasState, run: str) -> None:
    """Write a checkpoint atomically."""
    from tumoar.io.store import Section, save_sections

    arrays = {name: getattr(state, name) for name in ("reference", "tetrahedra", "positions", "alpha")}
    card = {"done": state.done, "data": state.data, "identity": run}
    save_sections(path, {"training": Section(arrays, card)})


def load_state(path: Path, run: str) -> AtlasState:
    """Read a checkpoint; refuse one of other label maps, settings or seed."""
    from tumoar.io.store import load_sections
    from tumoar.train.atlas import AtlasState

    section = load_sections(path).get("training")
    if section is None or section.card.get("identity") != run:
        raise IntegrityError(
            "checkpoint",
            "the checkpoint belongs to other label maps, settings or seed",
            file=path,
            do="give another file, or remove it to start over",
        )
    # Copy: kernels compiled for read-only arrays may round differently.
    arrays = {name: array.copy() for name, array in section.arrays.items()}
    return AtlasState(done=section.card["done"], data=section.card["data"], **arrays)


def identity(
    maps: npt.NDArray[np.uint8], labels: LabelTable, settings: AtlasSettings, seed: int, start: str = ""
) -> str:
    """Digest of everything that determines a training; `start` is that of the atlas it goes on from."""
    import hashlib

    names = [s.name for s in labels.structures if s.trained]
    parts = repr((maps.shape, names, settings, seed, *([start] if start else [])))
    return hashlib.sha256(maps.tobytes() + parts.encode()).hexdigest()


def _start(path: Path, labels: LabelTable) -> tuple[Atlas, str]:
    """The atlas to go on from, and the digest of its file."""
    import numpy as np

    from tumoar.io.store import load_atlas, load_hashed
    from tumoar.train.refine import to_wholes

    atlas, digest = load_atlas(path), load_hashed(path)[1]
    if not {"box", "landmarks"} <= set(atlas.provenance):
        raise UsageError(
            "start", "the card of the atlas does not say how heads are aligned with it", file=path
        )
    try:
        whole = to_wholes(atlas.labels, labels)
    except KeyError as error:
        raise UsageError(
            "start", "the atlas has other structures than the table", file=path, found=error.args[0]
        ) from error
    theirs = [s.name for s in atlas.labels.structures if s.trained]
    if (np.diff(whole.astype(int)) < 0).any() or len(set(whole.tolist())) < len(theirs):
        missing = [name for k, name in enumerate(theirs) if k not in whole]
        found = ", ".join(missing) or "another order"
        raise UsageError("start", "the atlas has other structures than the table", file=path, found=found)
    return atlas, digest


def _labels(path: Path | None, parts: Path | None) -> LabelTable:
    """The table of structures, refined by a table of parts."""
    from tumoar.io.files import read_toml
    from tumoar.vocabulary.labels import default_labels, parse_labels
    from tumoar.vocabulary.parts import refine_labels

    table = default_labels() if path is None else parse_labels(read_toml(path, "the table"))
    return table if parts is None else refine_labels(table, read_toml(parts, "the table"))


def _read(path: Path) -> Image:
    from tumoar.geometry.orientation import reorient
    from tumoar.io.nifti import read_nifti

    return reorient(read_nifti(path))[0]


def _integers(image: Image) -> npt.NDArray[np.int32]:
    import numpy as np

    with np.errstate(invalid="ignore"):  # NaN is refused below
        values = image.data.astype(np.int32)
    if not np.array_equal(values, image.data):
        raise UnreadableFileError("label-values", "label maps hold whole numbers only", file=image.source)
    return values
