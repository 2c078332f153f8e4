"""From a patient's images to labels: place the atlas, fit (Algorithm 2), sample (Algorithm 1), vote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tumoar.geometry.image import Case
from tumoar.inference import gem, gibbs
from tumoar.inference.last import Last
from tumoar.inference.pathway import find_courses
from tumoar.inference.tally import Tally
from tumoar.model.cavity import open_atlas
from tumoar.model.generative import Model, select_atlas, select_prior
from tumoar.model.gmm import Theta
from tumoar.placement.affine import AffineResult, place_affine
from tumoar.placement.tissue_order import check_order
from tumoar.result.checks import check_coverage
from tumoar.result.parts import drop_targets, uses_whole_tumor, widen_gtv
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.config import Config
from tumoar.vocabulary.contrasts import core_is_identifiable, drop_added_bounds, tumor_is_constrained
from tumoar.vocabulary.errors import ChannelError
from tumoar.vocabulary.notes import Note

Arrays = dict[str, npt.NDArray]
Held = npt.NDArray[np.int8]

NO_TUMOR = {"w": 1e-6, "locality": 0.0, "symmetry": 1.0, "location": 1.0}
"""Settings of Algorithm 2 if only organs are requested: tumor is expected nowhere."""
EVERY = 25
"""Sweeps between checkpoints."""


class Progress(NamedTuple):
    """Progress of a run: `done` of `total` steps of a stage, current figures, new notes."""

    stage: str
    done: int
    total: int
    figures: Mapping[str, float]
    notes: tuple[Note, ...] = ()


class Keeper(Protocol):
    """Checkpoint store."""

    def load(self, name: str) -> Arrays | None:
        """Load the arrays stored under this name, if any."""
        ...

    def save(self, name: str, arrays: Arrays) -> None:
        """Store arrays atomically."""
        ...


class Nowhere:
    """Checkpoint store that keeps nothing."""

    def load(self, name: str) -> Arrays | None:
        """Load nothing."""
        return None

    def save(self, name: str, arrays: Arrays) -> None:
        """Discard the arrays."""


@dataclass(frozen=True)
class Given:
    """Tumor fixed by the user: z and y (X, Y, Z) are 0 or 1, or -1 where free."""

    z: Held | None = None
    y: Held | None = None


def require_tumor_contrast(case: Case, config: Config) -> None:
    """B41: refuse to segment tumor on contrasts that cannot identify it."""
    if config.tumor and not tumor_is_constrained(case.contrasts):
        raise ChannelError(
            "B41",
            "these contrasts cannot identify tumor",
            found=", ".join(c.name for c in case.contrasts),
            do="add a T1c or a FLAIR, or segment organs only (--no-tumor)",
        )


def segment(
    case: Case,
    model: Model,
    config: Config | None = None,
    *,
    seed: int,
    given: Given | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    keeper: Keeper | None = None,
    keeps_samples: bool = False,
    trust_contrasts: bool = False,
) -> Segmentation:
    """Segment one patient.

    `watch` is called with the progress. Checkpoints in `keeper` from an interrupted run of the same case,
    model, settings and seed are used; the result is identical to that of an uninterrupted run. With
    `keeps_samples`, every sample is kept, not only the votes. Images that clearly do not have their named
    contrast are refused before the fit, or only noted with `trust_contrasts`.
    """
    config, keeper, given = config or Config(), keeper or Nowhere(), given or Given()
    require_tumor_contrast(case, config)
    if not config.tumor:
        given = Given(np.zeros(case.grid.shape, np.int8), np.zeros(case.grid.shape, np.int8))
        config = config.model_copy(update={"gem": config.gem.model_copy(update=NO_TUMOR)})
    if any(held is not None and (held == 1).any() for held in (given.z, given.y)):
        config = config.model_copy(update={"least_tumor": 0.0})  # keep whatever the user has drawn
    if config.bounds == "paper":
        case = replace(case, contrasts=tuple(map(drop_added_bounds, case.contrasts)))
    clock: dict[str, float] = {}
    # One BLAS thread: matrix products must not depend on the number of cores.
    with threadpool_limits(1, "blas"):
        with _time_stage(clock, "place"):
            placement = place(case, model, config, keeper, watch, trust_contrasts=trust_contrasts)
        model = select_atlas(select_prior(model, config), config)  # placement is the same for all settings
        if config.postop and config.tumor:
            blood = any(c.name == "T1" for c in case.contrasts)
            model = replace(model, atlas=open_atlas(model.atlas, blood=blood))
        with _time_stage(clock, "fit"):
            fit = _fit(case, model, placement, config, keeper, watch)
            if config.pathway and not config.gibbs.nodes_every:
                fit = replace(fit, courses=find_courses(case, fit))
        with _time_stage(clock, "sample"):
            chains = [
                _sample(case, model, fit, config, seed, number, given, keeper, watch, keeps_samples)
                for number in range(config.chains)
            ]
    tallies, infos, thetas, (tau, *_), (last, *_) = zip(*chains)
    config = config.model_copy(update={"gibbs": config.gibbs.model_copy(update={"tau": tau})})
    theta = thetas[0]
    found = Segmentation(
        case, model.labels, placement, fit, theta, tallies, infos, config, seed, clock, last=last
    )
    return _choose_targets(found)


def _choose_targets(result: Segmentation) -> Segmentation:
    """Make the GTV the whole tumor where settings or tumor ask for it; organs alone have no targets."""
    if not result.config.tumor:
        return replace(result, table=drop_targets(result.table))
    cubic = result.case.grid.voxel_volume / 1000
    core, whole = (float(v.sum()) * cubic for v in (result.votes.y, result.votes.z))
    identifiable = core_is_identifiable(result.case.contrasts)
    if uses_whole_tumor(result.config.gtv, core, whole, identifiable):
        return replace(result, table=widen_gtv(result.table))
    return result


def place(
    case: Case,
    model: Model,
    config: Config | None = None,
    keeper: Keeper | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    *,
    trust_contrasts: bool = False,
) -> AffineResult:
    """Place the atlas and check the images with it: coverage, tissue order."""
    config, keeper = config or Config(), keeper or Nowhere()
    watch(Progress("place", 0, 1, {}))
    stored = keeper.load("place")
    if stored is None:
        found = place_affine(case, model.atlas)
        names = sorted(found.quality)
        figures = np.array([found.quality[name] for name in names])
        keeper.save("place", {"matrix": found.matrix, "figures": figures, "names": np.array(names)})
    else:
        quality = dict(zip(stored["names"].tolist(), stored["figures"].tolist()))
        found = AffineResult(stored["matrix"], quality)
    placed = gem.place_atlas(case, model.atlas, found.matrix, config.gem)
    check_coverage(case, placed)
    notes = check_order(case, placed, trusted=trust_contrasts)
    watch(Progress("place", 1, 1, {}, notes))
    return replace(found, notes=(*found.notes, *notes))


def _fit(
    case: Case,
    model: Model,
    placement: AffineResult,
    config: Config,
    keeper: Keeper,
    watch: Callable[[Progress], None],
) -> gem.Fit:
    """Run Algorithm 2; each level counts as ten steps of progress."""
    placed = gem.place_atlas(case, model.atlas, placement.matrix, config.gem)
    total = 10 * len(config.gem.levels)
    stored = keeper.load("fit")
    if stored is None:
        for fit in gem.iter_fit(
            case, model.atlas, placement.matrix, model.tumor_mm3, config.gem, model.location
        ):
            step = fit.trace[-1]
            done = 10 * step.level + min(9, step.outer + 1)
            watch(Progress("fit", done, total, {"objective": step.objective}))
        keeper.save("fit", gem.to_arrays(fit))
    else:
        fit = gem.from_arrays(stored, placed)
    watch(Progress("fit", total, total, {"objective": fit.trace[-1].objective}))
    return fit


def _sample(
    case: Case,
    model: Model,
    fit: gem.Fit,
    config: Config,
    seed: int,
    number: int,
    given: Given,
    keeper: Keeper,
    watch: Callable[[Progress], None],
    keeps_samples: bool,
) -> tuple[Tally, tuple[gibbs.SweepInfo, ...], Theta, float, Last]:
    """Run Algorithm 1: votes of one chain, per-sweep diagnostics, last θ, τ, and what else it leaves."""
    own = int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint32)[0])
    shapes = (model.shape_z, model.shape_y)
    chain, begin = gibbs.initialize_chain(
        case,
        fit,
        shapes,
        model.tumor_mm3,
        config,
        own,
        fixed_z=given.z,
        fixed_y=given.y,
    )
    tally = Tally(chain.labels, chain.volume.use, keep_samples=keeps_samples)
    infos: list[gibbs.SweepInfo] = []
    stage, name = "sample" if config.chains == 1 else f"sample {number + 1}", f"chain_{number}"
    stored = keeper.load(name)
    if stored is not None:
        begin = gibbs.from_arrays(stored)
        counts = {k.removeprefix("tally_"): v for k, v in stored.items() if k.startswith("tally_")}
        if counts:
            tally.restore(counts)
        infos = [gibbs.SweepInfo(*map(int, row)) for row in stored["infos"]]
    total = config.gibbs.burn_in + config.gibbs.samples
    cubic = case.grid.voxel_volume / 1000
    state = begin
    for state, info in gibbs.iter_sweeps(chain, begin, config.gibbs):
        infos.append(info)
        if info.sweep > config.gibbs.burn_in:
            tally.add(state.labels)
        watch(Progress(stage, info.sweep, total, {"core": info.core * cubic, "tumor": info.tumor * cubic}))
        if info.sweep % EVERY == 0 or info.sweep == total:
            counts = {f"tally_{k}": v for k, v in tally.to_arrays().items()} if tally.samples else {}
            keeper.save(name, {**gibbs.to_arrays(state), **counts, "infos": np.array(infos)})
    nodes = fit.nodes if state.mesh is None else state.mesh.nodes
    shapes = (chain.shape_z, chain.shape_y)
    last = Last(state.labels, chain.volume.use, nodes, shapes, chain.fixed_z, chain.fixed_y)
    return tally, tuple(infos), state.theta, chain.tau, last


@contextmanager
def _time_stage(clock: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    clock[name] = time.monotonic() - start
