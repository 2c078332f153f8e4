"""Calibration of vote fractions where the model is right.

python research/calibration.py [--quick] [--patients N] [--cache DIR]

Phantoms are drawn from the model: labels voxel by voxel from the atlas, bent at random, given the tumor;
intensities of T1c, FLAIR and T2 from one Gaussian per tissue with bias fields, weights and covariances from
p(θ), which expects so much noise that tissues overlap, and knows it. Tumors of the first kind are not the
model's: they are all that trained neither shape prior, each put into two places. Those of the second
are: within two voxels of the surfaces of such a tumor z and y are drawn from both priors together, and what
lies farther from them is known.
Algorithm 1 knows where the atlas lies, starts at the most probable labels of the simplified model, and draws
everything else, in a box around the tumor: 100 + 50 sweeps, the priors as they are used where noise is
independent. A vote fraction is calibrated if, of the voxels with it, that fraction is tumor. In the first
place of each tumor Algorithm 1 also runs with the first-order Markov random field, from the same start.
One thread.
Finished rows are kept in DIR under a key of the code and data that made them.

Prints, as its last line, one JSON object; the full run writes research/results/calibration.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from samples import MAPS, collected  # first: it sets the number of threads

import nibabel as nib  # isort: skip
import numpy as np
import numpy.typing as npt
from fits import DATA, DECIDES, unseen_tumors
from head_cases import PROJECT, digest
from scipy.ndimage import binary_dilation, binary_erosion
from scipy.special import expit
from vote_fractions import binned, pooled, table, worst_tenth

from tumoar.geometry.image import Grid
from tumoar.inference import gibbs
from tumoar.inference.schedule import Schedule
from tumoar.inference.tally import Tally, Votes
from tumoar.io.models import default_model
from tumoar.model import joint
from tumoar.model.atlas import pi as label_pi
from tumoar.model.atlas import place
from tumoar.model.bias import field
from tumoar.model.generative import Model, select_prior, temper_priors
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import ThetaPrior, build_theta_prior, expect_voxels
from tumoar.numerics.distributions import Dirichlet, InverseWishart
from tumoar.numerics.voxels import WITH_DATA
from tumoar.result.scores import dice
from tumoar.simulate import draw_place
from tumoar.simulate.head import bend
from tumoar.simulate.tissue import default_tissues
from tumoar.vocabulary.config import Config, GemConfig, GibbsConfig
from tumoar.vocabulary.contrasts import find_contrast
from tumoar.vocabulary.labels import LabelTable

CONTRASTS = tuple(find_contrast(name) for name in ("T1c", "FLAIR", "T2"))
NOISE = 0.27  # SD in logs of intensity: about the difference of white and gray matter
BIAS = 0.03
AROUND = {"unseen": 15, "drawn": 10}  # voxels
PLACES, ALL = 2, (0.0, np.inf)  # of a tumor that is not the model's, and their sizes, cm³
DRAWN, DRAWN_ML = 50, (8.0, 40.0)  # tumors that are the model's, cm³ where they start
NEAR, FREE = 2, 150  # voxels from the surfaces where those start, and sweeps
SWEEPS = GibbsConfig(burn_in=100)
TISSUES = {
    "core": ("enhancing tumor", "necrosis", "enhancing tumor"),
    "edema": ("edema",),
    "GGM": ("gray matter",),
    "GWM": ("white matter",),
    "deep gray": ("deep gray matter",) * 2,
    "GNE": ("optic nerve", "eye wall"),
    "eye fluid": ("vitreous",),
    "CSF": ("CSF",) * 2,
    "background": ("marrow", "soft tissue", "skin"),
    "unspecified": ("vein",),
    "chiasm": ("white matter",),
    "fat": ("fat",) * 2,
    "muscle": ("muscle",) * 3,
}
"""The tissue that each Gaussian of a mixture stands for; the last of core enhances more."""


def means(labels: LabelTable) -> npt.NDArray[np.float64]:
    """μ (Q, N) in logs."""
    table = default_tissues()
    log_means = np.log(np.maximum([table.signals(c.name)[0] for c in CONTRASTS], 1e-3)).T
    mu = np.array([log_means[table.index(t)] for g in labels.gmms for t in TISSUES[g.name]])
    core = labels.component_slice(labels.core)
    mu[core.stop - 1] += (mu[core][0] - mu[core][1]) / 2
    unspecified, white = (labels.component_slice(labels.x_named(name)) for name in ("unspecified", "GWM"))
    mu[unspecified] = mu[white].min(0) - 0.4  # darker than any tissue of the brain, as its bound asks
    return mu


def p_theta(model: Model, pi: npt.NDArray) -> ThetaPrior:
    """p(θ) of a phantom: as in use, but that it expects the noise there is."""
    labels, mu = model.labels, means(model.labels)
    sums = np.bincount(labels.x_of_l, pi.sum((0, 1, 2), dtype=float), labels.X)
    expected = expect_voxels(labels, sums, model.tumor_mm3, 1.0)
    prior = build_theta_prior(labels, CONTRASTS, mu.mean(0), mu.var(0), pi[..., 0].size, expected)
    if (prior.A @ mu.ravel() > prior.b + 1e-9).any():
        raise ValueError("the means break the constraints of their prior")
    return replace(prior, S0=prior.nu0[:, None, None] * NOISE**2 * np.eye(len(CONTRASTS)))


def drawn_theta(labels: LabelTable, prior: ThetaPrior, rng: np.random.Generator) -> Theta:
    """Means of the tissues, weights and widths from their prior, bias fields of a few percent."""
    C = BIAS * rng.standard_normal((len(CONTRASTS), 4, 4, 4))
    C[:, 0, 0, 0] = 0
    gamma = Dirichlet(np.full(labels.Q, prior.alpha0), prior.group).sample(rng)
    return Theta(gamma, means(labels), InverseWishart(prior.nu0, prior.S0).sample(rng), C)


def drawn(p: npt.NDArray, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """An index for every voxel, from its probabilities (X, Y, Z, K)."""
    u = rng.random(p.shape[:-1], np.float32)[..., None]
    return (u >= np.cumsum(p, -1)[..., :-1]).sum(-1).astype(np.uint8)


class Phantom(NamedTuple):
    """π (X, Y, Z, K), D (N, X, Y, Z), truth, p(θ), θ, and z and y where they are known (-1 where not)."""

    pi: npt.NDArray
    D: npt.NDArray
    truth: joint.Labels
    prior: ThetaPrior
    theta: Theta
    held: tuple[gibbs.Fixed, gibbs.Fixed] | None


def phantom(model: Model, number: int) -> Phantom:
    """The box around a tumor."""
    labels, atlas = model.labels, model.atlas
    rng = np.random.default_rng([2019, number])
    low, high = atlas.box
    affine = np.eye(4)
    affine[:3, 3] = low
    x, y, z = np.floor(high - low).astype(int)
    grid = Grid((x, y, z), affine)
    pi = label_pi(place(atlas, np.eye(4), grid), grid.index(bend(atlas, rng)))
    image = nib.load(DATA / "tumors" / "automatic" / f"{tumors()[number]}.nii.gz")
    shape = np.asarray(nib.as_closest_canonical(image).dataobj).astype(np.uint8)
    likely = pi.argmax(-1)
    tumor = draw_place(shape, labels.indices[likely], labels, rng) * labels.in_brain[likely]
    at = np.argwhere(tumor)
    n = AROUND[kind(number)]
    box = tuple(slice(max(0, a - n), b + n) for a, b in zip(at.min(0), at.max(0)))
    pi, tumor = np.ascontiguousarray(pi[box]), tumor[box]
    z, y, held = tumor > 0, tumor > 1, None
    if kind(number) == "drawn":
        held = far_from_surfaces(z, y)
        z, y = drawn_tumor(model, pi, z, y, held, rng)
    # p(l | z): where there is tumor, brain is under it
    l = drawn(np.where(z[..., None], normalized(pi * labels.in_brain), pi), rng)
    truth = joint.Labels(l, z.astype(np.uint8), y.astype(np.uint8))
    prior = p_theta(model, pi)
    theta = drawn_theta(labels, prior, rng)
    x_of_l = np.where(truth.y == 1, labels.core, np.where(truth.z == 1, labels.edema, labels.x_of_l[l]))
    of_mixture = np.arange(labels.X)[:, None] == labels.x_of_component  # (X, Q)
    q = drawn((of_mixture * theta.gamma)[x_of_l], rng)
    noise = np.linalg.cholesky(theta.Sigma)[q] @ rng.standard_normal((*q.shape, len(CONTRASTS), 1))
    D = np.moveaxis(theta.mu[q] + noise[..., 0], -1, 0) + field(theta.C, l.shape)
    return Phantom(pi, D.astype(np.float32), truth, prior, theta, held)


def tumors() -> list[str]:
    """Whose tumor a phantom has, or begins with: phantoms of the first kind, then those of the second."""
    small = unseen_tumors(DRAWN_ML)
    return PLACES * unseen_tumors(ALL) + [small[i % len(small)] for i in range(DRAWN)]


def kind(number: int) -> str:
    return "unseen" if number < PLACES * len(unseen_tumors(ALL)) else "drawn"


def far_from_surfaces(z: npt.NDArray, y: npt.NDArray) -> tuple[gibbs.Fixed, gibbs.Fixed]:
    """z and y farther than NEAR voxels from their surfaces, -1 elsewhere; where core is known tumor is."""
    held = [
        np.where(binary_dilation(v, iterations=NEAR) ^ binary_erosion(v, iterations=NEAR), np.int8(-1), v)
        for v in (z, y)
    ]
    held[0][held[1] == 1] = 1
    return held[0], held[1]


def drawn_tumor(
    model: Model,
    pi: npt.NDArray,
    z: npt.NDArray,
    y: npt.NDArray,
    held: tuple[gibbs.Fixed, gibbs.Fixed],
    rng: np.random.Generator,
) -> tuple[npt.NDArray, npt.NDArray]:
    """z and y where they are free, from p(z, y) = Σ_l p(l) p(z) p(y): core in tumor, tumor in the brain."""
    brain = pi[..., model.labels.in_brain].sum(-1)
    region = brain > 0
    for _ in range(FREE):
        f_z = model.shape_z.field(z, held[0] < 0, int(rng.integers(2**63)))
        f_y = model.shape_y.field(y, held[1] < 0, int(rng.integers(2**63)))
        f_y[held[1] == 0] = -np.inf
        edema = np.log(np.maximum(brain, 1e-30)) + f_z  # log-odds of edema, then of tumor
        u = rng.random((2, *z.shape))
        z = np.where(held[0] < 0, region & (u[0] < expit(np.logaddexp(edema, edema + f_y))), held[0] == 1)
        y = np.where(held[1] < 0, z & (u[1] < expit(f_y)), held[1] == 1)
    return z, y


def normalized(pi: npt.NDArray) -> npt.NDArray:
    return pi / np.maximum(pi.sum(-1, keepdims=True), 1e-30)


def row(model: Model, number: int, sweeps: GibbsConfig) -> dict:
    """Dice and calibration of one phantom's votes."""
    p = phantom(model, number)
    true = maps(p.truth)
    tally = votes(model, p, number, sweeps)
    return {
        "patient": tumors()[number],
        "kind": kind(number),
        "voxels": int(p.truth.l.size),
        "cm3": {m: round(true[m].sum() / 1000, 1) for m in MAPS},
        **scores(tally.vote(), p.truth),
        "fractions": {m: binned(tally.fraction(tumor=parts), true[m]) for m, parts in MAPS.items()},
        "others": others(model, p, number, sweeps) if number < len(unseen_tumors(ALL)) else {},
    }


def others(model: Model, p: Phantom, number: int, sweeps: GibbsConfig) -> dict[str, dict[str, float]]:
    """Dice of where Algorithm 1 starts, and of its votes with the first-order Markov random field."""
    mrf = votes(select_prior(model, Config(prior="mrf")), p, number, sweeps)
    return {"start": scores(first_labels(model, p), p.truth), "mrf": scores(mrf.vote(), p.truth)}


def maps(labels: joint.Labels | Votes) -> dict[str, npt.NDArray[np.bool_]]:
    return {"core": labels.y == 1, "whole": labels.z == 1}


def scores(found: joint.Labels | Votes, truth: joint.Labels) -> dict[str, float]:
    return {m: round(dice(maps(found)[m], maps(truth)[m]), 4) for m in MAPS}


def first_labels(model: Model, p: Phantom) -> joint.Labels:
    """The most probable labels of the simplified model."""
    flat = joint.compile_groups(model.labels, flat=joint.Flat(GemConfig().w, GemConfig().u))
    return joint.find_most_probable(joint.build_volume(p.D, everywhere(p)), p.pi, flat, p.theta)


def everywhere(p: Phantom) -> npt.NDArray[np.uint8]:
    return np.full(p.truth.l.shape, WITH_DATA, np.uint8)


def votes(model: Model, p: Phantom, number: int, sweeps: GibbsConfig) -> Tally:
    """Algorithm 1 with the shape priors of the model."""
    volume = joint.build_volume(p.D, everywhere(p))
    region = p.pi[..., model.labels.in_brain].sum(-1) > 0
    own = joint.pack_prior(volume, p.pi)
    known = p.held or (None, None)
    pace = Schedule(sweeps.full_every, sweeps.rest_every, sweeps.burn_in)
    shapes = model.shape_z, model.shape_y
    chain = gibbs.Chain(model.labels, volume, own, p.prior, *shapes, region, number, *known, pace)
    tally = Tally(model.labels, everywhere(p))
    for state, info in gibbs.iter_sweeps(
        chain, gibbs.initialize_state(chain, p.theta, first_labels(model, p)), sweeps
    ):
        if info.sweep > sweeps.burn_in:
            tally.add(state.labels)
    return tally


def used() -> Model:
    """The model as used where noise is independent; the level of core is for images that are blurred."""
    config = Config(level_y=0.0)
    model = select_prior(default_model(), config)
    z, y = temper_priors((model.shape_z, model.shape_y), config, 1.0)
    return replace(model, shape_z=z, shape_y=y)


def rows(folder: Path, patients: int, sweeps: GibbsConfig) -> Iterator[dict]:
    """Rows of all phantoms; what was finished before is read."""
    kept = folder / f"calibration_{digest(__file__, DECIDES)}_{sweeps.burn_in}_{sweeps.samples}"
    kept.mkdir(exist_ok=True)
    model = used()
    for number in range(patients):
        path = kept / f"{number}.json"
        if not path.exists():
            path.write_text(json.dumps(row(model, number, sweeps)), encoding="utf-8")
        yield json.loads(path.read_text(encoding="utf-8"))


SIZES = {"core": (12.0, 35.0), "whole": (60.0, 110.0)}  # cm³: edges of three groups
RIVALS = {"start": "start", "mrf": "Markov random field", "crbm": "cRBM"}
TITLES = {"unseen": "Tumors of patients that trained nothing", "drawn": "Tumors that the priors draw"}


def page(found: list[dict], figures: dict[str, float]) -> str:
    lines = ["# Calibration", "", *(__doc__ or "").split("\n\n")[2].splitlines(), ""]
    for name, title in TITLES.items():
        of = [r for r in found if r["kind"] == name]
        if not of:
            lines += [f"## {title}", "", "Not run yet.", ""]
            continue
        volumes = [r["cm3"]["whole"] for r in of]
        lines += [f"## {title}", ""]
        lines += [f"{len(of)} phantoms, tumors of {min(volumes)} to {max(volumes)} cm³"]
        lines[-1] += (
            ": " + ", ".join(dict.fromkeys(r["patient"] for r in of)) + "." if name == "unseen" else "."
        )
        lines += ["", "Voxels by their vote fraction, neither 0 nor 1; how many are tumor.", ""]
        lines += [*table(*(pooled([r["fractions"][m] for r in of]) for m in MAPS)), ""]
        lines += [*by_size(of), *against(of)] if name == "unseen" else []
    lines += ["| figure | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in figures.items())]
    return "\n".join(lines) + "\n"


def against(found: list[dict]) -> list[str]:
    """Lines of a page: Dice of the start, and of Algorithm 1 with either prior."""
    of = [r for r in found if r["others"]]
    lines = [f"Dice in the first place of each tumor, {len(of)} phantoms: mean, and least.", ""]
    lines += ["| | core | whole |", "|---|---|---|"]
    for name, title in RIVALS.items():
        values = [[(r["others"].get(name) or r)[m] for r in of] for m in MAPS]
        lines += [f"| {title} | " + " | ".join(f"{np.mean(v):.4f}, {min(v):.4f}" for v in values) + " |"]
    return [*lines, ""]


def by_size(found: list[dict]) -> list[str]:
    """Lines of a page: shares between a fifth and four fifths, for tumors of three sizes."""
    lines = ["Shares from 0.2 to 0.8 by the volume of what is outlined.", ""]
    lines += ["| | cm³ | phantoms | voxels | mean share | true |", "|---|---|---|---|---|---|"]
    for m, edges in SIZES.items():
        for low, high in zip((0.0, *edges), (*edges, np.inf)):
            of = [r["fractions"][m][2:8] for r in found if low <= r["cm3"][m] < high]
            voxels, share, true = np.sum(of, axis=(0, 1)) if of else (0, 0, 0)
            size = f"from {low:g}" if high == np.inf else f"{low:g} to {high:g}"
            of_all = max(voxels, 1)
            lines += [
                f"| {m} | {size} | {len(of)} | {voxels:.0f} | {share / of_all:.3f} | {true / of_all:.3f} |"
            ]
    return [*lines, ""]


def summary(found: list[dict]) -> dict[str, float]:
    """Phantoms of each kind, and for each map the worst tenth and mean Dice."""
    figures: dict[str, float] = {}
    groups = {name: [r for r in found if r["kind"] == name] for name in TITLES}
    for name, rows in groups.items():
        figures[f"{name}_phantoms"] = len(rows)
        for m in MAPS if rows else ():
            figures[f"{name}_{m}_worst_tenth"] = worst_tenth(pooled([r["fractions"][m] for r in rows]))
            figures[f"{name}_{m}_dice"] = round(float(np.mean([r[m] for r in rows])), 4)
    return figures


def main() -> None:
    shown = lambda row: {k: v for k, v in row.items() if k != "fractions"}  # noqa: E731
    is_quick, found = collected(__doc__ or "", rows, len(tumors()), SWEEPS, show=shown)
    figures = summary(found)
    if not is_quick:
        (PROJECT / "research" / "results" / "calibration.md").write_text(
            page(found, figures), encoding="utf-8"
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
