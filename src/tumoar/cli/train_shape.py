"""`tumoar train shape` and `tumoar train combine`: train shape priors, combine model files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from tumoar.vocabulary.errors import GeometryError, UnreadableFileError, UsageError

if TYPE_CHECKING:
    from tumoar.io.checkpoint import Checkpoints
    from tumoar.model.shape.crbm import CRBM
    from tumoar.train.contrastive import ContrastiveTraining
    from tumoar.train.shape import ShapeTraining, StepInfo
    from tumoar.train.shape_data import Shape

    Training: TypeAlias = ShapeTraining | ContrastiveTraining

EVERY = 100  # steps between checkpoints
TRACE = "step\terror\tvolume\tnorm\tgap\tvisible_bias\thidden_bias"
SMALLEST = 300  # mm³: smaller masks carry little information on shape


def shape(
    masks: Annotated[list[Path], typer.Argument(help="Label maps on 1 mm grids.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
    maps: Annotated[str, typer.Option(help="Maps to train: z (tumor), y (core) or zy.")] = "zy",
    core: Annotated[str, typer.Option(help="Labels of the core.")] = "2,3",
    rule: Annotated[
        Literal["recovery", "cd"], typer.Option(help="Learning rule: our default, or that of the paper.")
    ] = "recovery",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Gradient steps (default: depends on the rule).")
    ] = None,
    step: Annotated[float | None, typer.Option(help="Size of a gradient step (default 0.1).")] = None,
    held_out: Annotated[
        int | None,
        typer.Option(min=0, help="Patients to hold out for tests (default 30, at most a fifth of all)."),
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(
            min=0, help="Further patients held out, to monitor training (default 10, at most a tenth)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of split and training.")] = 2019,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Checkpoint folder; an interrupted run is resumed.")
    ] = None,
) -> None:
    """Train the tumor shape prior: one cRBM per map, from masks of many patients."""
    from dataclasses import asdict

    from tumoar.io.checkpoint import Checkpoints
    from tumoar.io.outputs import require_new_model
    from tumoar.io.shapes import shape_section
    from tumoar.io.store import save_sections
    from tumoar.model.shape.crbm import sparsify
    from tumoar.train.shape_data import split_by_patient
    from tumoar.version import __version__

    require_new_model(output)
    if not maps or set(maps) - set("zy"):
        raise UsageError("maps", "maps must be z, y or zy", found=maps)
    try:
        labels = [int(x) for x in core.split(",")]
    except ValueError:
        raise UsageError("core", "core labels must be numbers separated by commas", found=core) from None
    configs = {name: select_training(name, rule, steps, step) for name in maps}
    shapes = read_shapes(masks, labels)
    usual = default_split(len({s.patient for s in shapes["z"]}))
    held_out, validation = (n if given is None else given for given, n in zip((held_out, validation), usual))
    sections = {}
    for name, config in configs.items():
        rest, held = split_by_patient(shapes[name], held_out, seed)
        used, watched = split_by_patient(rest, validation, seed + 1)
        if not used:
            raise UsageError(
                "masks",
                f"no mask of at least {SMALLEST} mm³ is left to train {name} on",
                found=f"{len(shapes[name])} masks, {len(held) + len(watched)} of them held out",
                do="give more masks, or hold out fewer",
            )
        keeper = None
        if checkpoints is not None:
            keeper = Checkpoints(checkpoints, run_key(name, config, seed, used, watched))
        model = _train(used, watched, config, seed, keeper, name)
        sections[f"shape_{name}"] = shape_section(
            sparsify(model),
            {
                "command": f"tumoar train shape MASKS --maps {name} --core {core} --rule {rule} "
                f"--steps {config.steps} --step {config.step} "
                f"--held-out {held_out} --validation {validation} --seed {seed}",
                "version": __version__,
                "training": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()},
                "subjects": sorted(s.name for s in used),
                "validation": sorted(s.name for s in watched),
                "held_out": sorted(s.name for s in held),
                "mean_mm3": tumor_volumes(shapes, {s.patient for s in (*held, *watched)}),
            },
        )
    typer.echo(f"{output} {save_sections(output, sections)}")


def default_split(patients: int) -> tuple[int, int]:
    """Number of patients to hold out for tests, and to monitor training, if nothing is said."""
    return min(30, patients // 5), min(10, patients // 10)


def select_training(name: str, rule: str, steps: int | None, step: float | None) -> Training:
    """Settings of the training of a map."""
    from dataclasses import replace

    from tumoar.train.contrastive import ContrastiveTraining
    from tumoar.train.shape import SETTINGS

    if step is not None and not 0 < step <= 10:
        raise UsageError("step", "step is out of range", found=step, do="give a number above 0, at most 10")
    config: Training = ContrastiveTraining() if rule == "cd" else SETTINGS[name]
    config = config if steps is None else replace(config, steps=steps)
    return config if step is None else replace(config, step=step)


def combine(
    models: Annotated[list[Path], typer.Argument(help="Model files.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The model file to write.")],
) -> None:
    """Combine the sections of several model files in one."""
    from tumoar.io.outputs import require_new_model
    from tumoar.io.store import Section, load_sections, save_sections

    require_new_model(output)
    sections: dict[str, Section] = {}
    for path in models:
        for name, section in load_sections(path).items():
            if name in sections:
                raise UsageError("sections", f"section {name} is in two of the files", file=path)
            sections[name] = section
    typer.echo(f"{output} {save_sections(output, sections)}")


def read_shapes(paths: list[Path], core: list[int]) -> dict[str, list[Shape]]:
    """Shapes of the tumor map z (any label) and of the core map y (the labels of `core`)."""
    import numpy as np

    from tumoar.train.shape_data import crop_shape

    out: dict[str, list[Shape]] = {"z": [], "y": []}
    names: set[str] = set()
    for path in paths:
        name_of_map = path.name.split(".")[0]
        if name_of_map in names:
            do = "give each label map once, in files of different names"
            raise UsageError("masks", "two masks have the same name", file=path, found=name_of_map, do=do)
        names.add(name_of_map)
        labels = _labels(path)
        for name, mask in (("z", labels > 0), ("y", np.isin(labels, core))):
            found = crop_shape(name_of_map, mask)
            if found is not None and found.volume >= SMALLEST:
                out[name].append(found)
    return out


def tumor_volumes(shapes: dict[str, list[Shape]], left_out: set[str]) -> dict[str, float]:
    """Mean volume of core and edema in mm³ over the training patients, for the prior of the likelihood."""
    z, y = (sum(s.volume for s in shapes[name] if s.patient not in left_out) for name in "zy")
    n = max(1, sum(s.patient not in left_out for s in shapes["z"]))
    return {"core": round(y / n, 1), "edema": round((z - y) / n, 1)}


def run_key(
    name: str, config: Training, seed: int, shapes: tuple[Shape, ...], unseen: tuple[Shape, ...]
) -> str:
    """SHA-256 of everything that determines a training."""
    digest = hashlib.sha256(repr((name, config, seed)).encode())
    for s in (*shapes, *unseen):
        digest.update(repr((s.name, s.v.shape, s.places)).encode())
        digest.update(s.v.tobytes())
    return digest.hexdigest()


def _labels(path: Path) -> Any:
    """A label map with canonical axes; 1 mm voxels are required, because filters have a size in mm."""
    import numpy as np

    from tumoar.geometry.orientation import reorient
    from tumoar.io.nifti import read_nifti

    image, _ = reorient(read_nifti(path))
    if np.abs(image.grid.spacing - 1).max() > 0.01:
        raise GeometryError(
            "spacing",
            "masks must have 1 mm voxels",
            file=path,
            found=image.grid.spacing.round(3).tolist(),
            do="resample it",
        )
    if not np.array_equal(np.rint(image.data), image.data):  # also NaN
        do = "give masks or label maps, not images"
        raise UnreadableFileError("label-values", "label maps hold whole numbers only", file=path, do=do)
    return image.data


def trace_row(model: CRBM, info: StepInfo) -> str:
    """A line of the trace of a training: its figures, the visible bias and the mean hidden bias."""
    figures = (info.error, info.volume, info.norm, info.gap, model.a, float(model.b.mean()))
    return "\t".join([str(info.step), *(f"{x:.6g}" for x in figures)])


def read_trace(path: Path, steps: int) -> list[str]:
    """Lines of the first steps of the trace that an interrupted training has left."""
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8").splitlines()[1 : steps + 1]


def _train(
    shapes: tuple[Shape, ...],
    unseen: tuple[Shape, ...],
    config: Training,
    seed: int,
    keeper: Checkpoints | None,
    name: str,
) -> CRBM:
    from rich.progress import Progress
    from threadpoolctl import threadpool_limits

    from tumoar.train import contrastive, shape

    # both modules have the same functions, each for its own settings and state
    training: Any = contrastive if isinstance(config, contrastive.ContrastiveTraining) else shape
    stored = None if keeper is None else keeper.load(f"shape_{name}")
    begin = training.initialize(shapes, config, seed) if stored is None else training.from_arrays(stored)
    state = begin
    trace = [] if keeper is None else read_trace(keeper.folder / f"shape_{name}.tsv", begin.step)
    # BLAS sums depend on the number of threads, and all later draws on them
    with threadpool_limits(1, "blas"), Progress() as progress:
        bar = progress.add_task(name, total=config.steps, completed=begin.step)
        for state, info in training.train(shapes, config, begin, unseen):
            about = f"{name} error {info.error:.3f} volume {info.volume:.2f} free-energy gap {info.gap:.3f}"
            progress.update(bar, completed=info.step, description=about)
            trace.append(trace_row(state.model, info))
            if keeper is not None and state.step % EVERY == 0:
                keeper.save(f"shape_{name}", training.to_arrays(state))
                text = "\n".join([TRACE, *trace, ""])
                (keeper.folder / f"shape_{name}.tsv").write_text(text, encoding="utf-8")
    model: CRBM = state.model
    return model
