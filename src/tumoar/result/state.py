"""What sampling again needs of a finished segmentation: one file of the result, `state.npz`.

It holds the images within 10 mm of the brain and of organs, the placed and fitted atlas, θ, the last labels
of the first chain, votes and volumes of the samples, and the shape priors. Nothing else is about the patient.
Intensities are rounded to 1/512, a fiftieth of the noise or less, and the location factor to 1/64 nat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tumoar.geometry.distance import distance_to
from tumoar.geometry.image import Grid
from tumoar.inference.initialise import MARGIN
from tumoar.io.shapes import section_shape, shape_section
from tumoar.io.store import Section, atlas_section, load_sections, save_sections, section_atlas
from tumoar.model.atlas import Placed, place
from tumoar.model.cavity import find_fillings, find_kinds
from tumoar.model.gmm import Theta
from tumoar.model.joint import Labels
from tumoar.model.shape.base import ShapePrior
from tumoar.model.shape.crbm import CRBM
from tumoar.model.shape.mrf import FirstOrderMRF
from tumoar.numerics.voxels import UNUSED, WITH_DATA
from tumoar.result.segmentation import Segmentation

STATE = "state.npz"
STEP = 1 / 512
"""Stored steps of transformed intensities."""
NATS = 1 / 64
"""Stored steps of the logarithm of the location factor."""
ANY = -1
"""Value of `State.fixed` where z or y was not given."""

Box = tuple[slice, slice, slice]
Votes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class State:
    """A segmentation as a chain left it, in a box of the grid of its case.

    `first` is the first voxel of the box in the case, of `shape`. `votes_z`, `votes_y` and `votes_cavity` are
    counts out of `samples`; `volumes` (samples, K + 2) are voxels of each structure, edema and core.
    `islands` are voted tumor that the outline omits. `log_factor` is added to the log-odds of z. `fillings`
    number the odds of a cavity (`model.cavity.SHARES`). `bound` is a channel and the intensity below which a
    separate part of tumor is not outlined, without the bias.
    """

    grid: Grid
    first: tuple[int, int, int]
    shape: tuple[int, int, int]
    D: npt.NDArray[np.float32]
    use: npt.NDArray[np.uint8]
    labels: Labels
    votes_z: Votes
    votes_y: Votes
    votes_cavity: Votes
    volumes: npt.NDArray[np.int64]
    islands: npt.NDArray[np.bool_]
    log_factor: npt.NDArray[np.float32]
    fillings: npt.NDArray[np.uint8]
    fixed_z: npt.NDArray[np.int8] | None
    fixed_y: npt.NDArray[np.int8] | None
    placed: Placed
    nodes: npt.NDArray[np.float64]
    theta: Theta
    shapes: tuple[ShapePrior, ShapePrior]
    tau: float
    seed: int
    bound: tuple[int, float] | None

    @property
    def samples(self) -> int:
        """Number of samples that voted."""
        return len(self.volumes)


def write_state(path: Path, result: Segmentation) -> None:
    """Write the state of a segmentation that a chain left."""
    last = result.last
    assert last is not None
    table, case, tally = result.fit.placed.atlas.labels, result.case, result.tally
    near = _near(result)
    box = _box(near)
    i, j, k = box
    near = near[box]
    use = np.where(near, last.use[box], np.uint8(UNUSED))
    whole = {name: np.zeros(case.grid.shape, np.uint8) for name in ("z", "y", "cavity")}
    for name, votes in (("z", tally.z), ("y", tally.y)):
        whole[name].ravel()[tally.at] = votes
    if table.cavity is not None:
        whole["cavity"].ravel()[tally.at] = tally.l[table.cavity]
    arrays: dict[str, npt.NDArray[Any]] = {
        **_pack_data(case.D[(slice(None), *box)], use == WITH_DATA),
        "use": use,
        "labels_l": last.labels.l[box],
        "labels_zy": last.labels.z[box] + last.labels.y[box],
        **{f"votes_{name}": votes[box] for name, votes in whole.items()},
        "volumes": np.array(tally.volumes, np.int64),
        "islands": np.packbits(result.islands[box]),
        "log_factor": np.rint(-np.log(np.float32(result.fit.factor[box])) / NATS).astype(np.uint8),
        "nodes": (last.nodes - [i.start, j.start, k.start]).astype(np.float32),
        "matrix": np.asarray(result.placement.matrix, np.float64),
        "affine": case.grid.affine,
        **{f"theta_{name.lower()}": value for name, value in vars(result.theta).items()},
    }
    if table.cavity is not None:
        found = find_fillings(result.fit.labels, case.contrasts, case.D, result.fit.theta)
        arrays["fillings"] = find_kinds(found)[box]
    for name, fixed in (("fixed_z", last.fixed_z), ("fixed_y", last.fixed_y)):
        if fixed is not None:
            arrays[name] = (fixed[box] - ANY).astype(np.uint8)
    priors = [_pack_shape(shape) for shape in last.shapes]
    card = {
        "first": [i.start, j.start, k.start],
        "shape": list(case.grid.shape),
        "tau": float(result.config.gibbs.tau),
        "seed": result.seed,
        "bound": result.bound,
        "priors": [prior.card for prior in priors],
    }
    sections = {"state": Section(arrays, card), "atlas": atlas_section(result.fit.placed.atlas)}
    sections |= {
        name: prior for name, prior in zip(("shape_z", "shape_y"), priors, strict=True) if prior.arrays
    }
    save_sections(path, sections, level=1)


def read_state(path: Path) -> State:
    """Read a state; its digest was checked with the manifest of the result."""
    sections = load_sections(path)
    arrays, card = sections["state"].arrays, sections["state"].card
    first, shape, whole = card["first"], arrays["use"].shape, card["shape"]
    affine = arrays["affine"].copy()
    affine[:3, 3] = Grid((1, 1, 1), affine).world(first)
    grid = Grid((shape[0], shape[1], shape[2]), affine)
    level = arrays["labels_zy"]
    labels = Labels(*(v.copy() for v in (arrays["labels_l"], _at_least(level, 1), _at_least(level, 2))))
    fixed = {
        name: arrays[name].astype(np.int8) + np.int8(ANY) if name in arrays else None
        for name in ("fixed_z", "fixed_y")
    }
    z, y = (
        _unpack_shape(sections, name, prior, path)
        for name, prior in zip(("shape_z", "shape_y"), card["priors"], strict=True)
    )
    bound = card["bound"]
    return State(
        grid=grid,
        first=(first[0], first[1], first[2]),
        shape=(whole[0], whole[1], whole[2]),
        D=_unpack_data(arrays),
        use=arrays["use"],
        labels=labels,
        votes_z=arrays["votes_z"],
        votes_y=arrays["votes_y"],
        votes_cavity=arrays["votes_cavity"],
        volumes=arrays["volumes"],
        islands=np.unpackbits(arrays["islands"], count=level.size).reshape(shape).astype(bool),
        log_factor=arrays["log_factor"] * np.float32(-NATS),
        fillings=arrays.get("fillings", np.ones_like(arrays["use"])),
        fixed_z=fixed["fixed_z"],
        fixed_y=fixed["fixed_y"],
        placed=place(section_atlas(sections, path), arrays["matrix"], grid),
        nodes=arrays["nodes"].astype(np.float64),
        theta=Theta(*(arrays[f"theta_{name}"] for name in ("gamma", "mu", "sigma", "c"))),
        shapes=(z, y),
        tau=card["tau"],
        seed=card["seed"],
        bound=None if bound is None else (int(bound[0]), float(bound[1])),
    )


def _near(result: Segmentation) -> npt.NDArray[np.bool_]:
    """(X, Y, Z) what is stored: the brain, organs, and what lies around them."""
    assert result.last is not None
    table = result.fit.placed.atlas.labels
    organs = [table.l(name) for organ in table.organs for name in organ.structures]
    inside = (table.in_brain | np.isin(np.arange(table.K), organs))[result.last.labels.l]
    return distance_to(inside & (result.last.use != UNUSED), result.case.grid.spacing.tolist()) <= MARGIN


def _box(near: npt.NDArray[np.bool_]) -> Box:
    some = [np.flatnonzero(near.any(others)) for others in ((1, 2), (0, 2), (0, 1))]
    i, j, k = (slice(int(s[0]), int(s[-1]) + 1) if len(s) else slice(0, 1) for s in some)
    return i, j, k


def _at_least(level: npt.NDArray[np.uint8], least: int) -> npt.NDArray[np.uint8]:
    return (level >= least).astype(np.uint8)


def _pack_data(D: npt.NDArray[np.float32], at: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.uint8]]:
    """Rounded intensities as differences along the last axis, low and high bytes apart: these compress."""
    steps = np.where(at, np.rint(np.nan_to_num(D) / STEP), 0).astype(np.int32).astype(np.uint16)
    rest = np.diff(steps, axis=-1, prepend=np.uint16(0))  # modulo 2^16, as when they are summed again
    return {"data_low": (rest & 255).astype(np.uint8), "data_high": (rest >> 8).astype(np.uint8)}


def _unpack_data(arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    rest = arrays["data_low"].astype(np.uint16) | arrays["data_high"].astype(np.uint16) << 8
    steps = np.cumsum(rest, axis=-1, dtype=np.uint16).view(np.int16)
    return np.ascontiguousarray(steps * np.float32(STEP))


def _pack_shape(shape: ShapePrior) -> Section:
    if isinstance(shape, CRBM):
        return shape_section(shape, {})
    assert isinstance(shape, FirstOrderMRF)
    return Section({}, {"kind": "MRF", "beta": shape.beta, "level": shape.level})


def _unpack_shape(
    sections: Mapping[str, Section], name: str, card: Mapping[str, Any], path: Path
) -> ShapePrior:
    if card["kind"] == "MRF":
        return FirstOrderMRF(card["beta"], card["level"])
    return section_shape(sections, name, path)
