"""Every kernel next to the prototype it was designed after: the same arrays, in one run, in turn.

python benchmarks/prototypes.py [--quick]

The prototypes are scripts that lie beside the project, in `shared/prototypes`, or where the environment
variable TUMOAR_PROTOTYPES says. Both sides run on one thread; seconds are CPU seconds, the best of several
repeats, taken alternately. A ratio is our time over the prototype's: at most 1.5 is the goal.

Prints, as its last line, one JSON object; the full run writes research/results/prototypes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numba as nb
import numpy as np
from crbm import SHIPPED, case, dense_filters
from mesh import head_grid
from threadpoolctl import threadpool_limits
from timing import alternately

from tumoar.geometry.image import Grid
from tumoar.io.models import default_model
from tumoar.io.shapes import section_shape
from tumoar.io.store import load_sections
from tumoar.model import joint
from tumoar.model.atlas import place
from tumoar.model.gmm import Theta
from tumoar.numerics import tetra, tetra_cost, tetra_prior
from tumoar.numerics.convolve import REACH, pack
from tumoar.numerics.convolve_field import draw_field
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import Groups

PROJECT = Path(__file__).resolve().parents[1]
GOAL = 1.5
ABOUT = """Written by `python benchmarks/prototypes.py`: every kernel next to the prototype it was designed
after, on the same arrays, one thread, CPU seconds, best of {repeats}, in turn. A ratio is our time over the
prototype's; the goal is {goal} at most. The machine's load when the run began was {load:.1f}: with more than
one process per core seconds mean little, ratios do.

What is compared, and where the work differs:

- **Field of a shape prior.** A volume of 160×192×160 voxels with a tumor-like blob of 60 cm³ and 0.2 % salt
  noise; the field is wanted in the whole brain, or within 10 mm of the blob. The prototype gets the volume
  padded, so that both draw the same hidden units, at {brain} and {near} places. Its tables hold single
  precision, or 16-bit integers, which are off by up to 0.09; ours hold 32-bit integers, whose sums are exact,
  so that the field does not depend on crop or threads. The prototype keeps its arrays between calls; ours
  makes them, finds the rows that are wanted, and hashes twice for a random number. With the shipped priors
  ours uses that filters share kernels and that idle places seldom switch a unit on; the prototype cannot.
- **Mesh.** The prototype's own mesh, {nodes} nodes and {tetrahedra} tetrahedra on {grid} voxels, which ours
  visits in its own order, as it does with an atlas; and the shipped atlas on the same grid, turned a little.
  Both make the array that they fill. Ours finds the voxels that no tetrahedron owns, and decides exactly who
  owns a voxel on a face. Both costs, and our rasterization, skip tetrahedra that are background alone. The
  prototype has inverted the mesh at rest before; ours does it in every evaluation of the deformation prior.
- **Voxel passes.** {voxels} voxels of a head-like ball, 4 contrasts, 20 Gaussians in 12 mixtures, 17 labels,
  64 functions of bias field: the prototype's tables, given to our kernels. Ours allows for missing data and
  for any number of contrasts and labels; the sampler's prior is packed once before, as in a run.
"""


def folder() -> Path:
    """Where the prototypes are."""
    given = os.environ.get("TUMOAR_PROTOTYPES")
    path = Path(given) if given else PROJECT.parent / "shared" / "prototypes"
    if not (path / "crbm_numba.py").is_file():
        sys.exit(f"No prototypes in {path}: set TUMOAR_PROTOTYPES to the folder that holds crbm_numba.py.")
    return path


# ---- field of a shape prior --------------------------------------------------------------------------------


def fields(repeats: int, quick: bool) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    import crbm_numba

    rng = np.random.default_rng(0)
    v, near, brain = case(rng)
    if quick:
        box = (slice(48, 128), slice(79, 159), slice(18, 98))
        v, near, brain = v[box], near[box], brain[box]
    padded = np.pad(v, REACH).astype(np.uint8)
    figures: dict[str, float] = {}
    rows: dict[str, dict[str, float]] = {}

    def compare(name, w, b, a, filters, kinds):
        peers = {
            kind: crbm_numba.CRBM(
                w.astype(np.float32), b.astype(np.float32), a, padded.shape, 5, kind, scale=scale
            )
            for kind, scale in kinds.items()
        }
        for where, region in (("active", near), ("brain", brain)):
            drawn = {}

            def mine(region=region, drawn=drawn):
                drawn["ours"] = draw_field(v, region, filters, a, 1)

            runs = {"ours": mine}
            for kind, peer in peers.items():
                peer.set_active(np.pad(region, REACH))
                runs[kind] = lambda peer=peer: peer.step(padded, 7)
            seconds = alternately(runs, repeats)
            peer = next(iter(peers.values()))
            inner = peer.F[(slice(REACH, -REACH),) * 3][region]
            figures[f"{where}_places"] = int(np.clip(np.minimum(peer.hi, 10**4) - peer.lo, 0, None).sum())
            mean, spread = drawn["ours"][region].mean(dtype=float), inner.std(dtype=float)
            difference = abs(inner.mean(dtype=float) - mean) / spread
            figures[f"{name}_{where}_mean_field_difference_in_spreads"] = float(difference)
            for kind in peers:
                rows[f"{name}_{where}_{kind}"] = {"ours": seconds["ours"], "prototype": seconds[kind]}

    w, b = dense_filters(rng)
    kinds = {"f32": 1.0} if quick else {"f32": 1.0, "i16": 4096.0}
    compare("dense", w, b, -0.7, pack(w, b), kinds)
    if not quick:
        sections = load_sections(SHIPPED)
        for name in "zy":
            model = section_shape(sections, f"shape_{name}", SHIPPED)
            compare(f"shipped_{name}", model.w, model.b, model.a, model.filters, {"f32": 1.0})
    return rows, figures


# ---- mesh --------------------------------------------------------------------------------------------------


def shipped_mesh(shape):
    """The shipped atlas in a grid around its head: nodes, tetrahedra, alpha as the prototype wants them."""
    atlas = default_model().atlas
    turned = head_grid(shape).affine[:3, :3]
    affine = np.eye(4)
    affine[:3, :3] = turned
    affine[:3, 3] = (atlas.nodes.min(0) + atlas.nodes.max(0)) / 2 - turned @ (np.array(shape) / 2 - 0.5)
    placed = place(atlas, np.eye(4), Grid(shape, affine))
    return placed.reference, placed.tetrahedra.astype(np.int32), atlas.alpha.astype(np.float32)


def meshes_and_costs(repeats: int, quick: bool) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    import mesh_numba

    rng = np.random.default_rng(0)
    shape = (91, 109, 96) if quick else (181, 217, 191)
    rows: dict[str, dict[str, float]] = {}
    figures: dict[str, float] = {}
    side = 20 if quick else 40
    meshes = {f"rasterise_{K}": mesh_numba.make_mesh(shape, side, 0.25, K) for K in (17, 10)}
    if quick:
        del meshes["rasterise_17"]
    else:
        meshes["rasterise_atlas"] = shipped_mesh(shape)
    for name, (nodes, tetrahedra, alpha) in meshes.items():
        ordered = tetrahedra[tetra.spatial_order(nodes, tetrahedra)]
        found = {}

        def mine(nodes=nodes, ordered=ordered, alpha=alpha, found=found):
            found["ours"] = rasterize(nodes, ordered, alpha, shape)

        def theirs(nodes=nodes, tetrahedra=tetrahedra, alpha=alpha, found=found):
            found["prototype"] = np.zeros((*shape, alpha.shape[1]), np.float32)
            mesh_numba.rasterise(nodes, tetrahedra, alpha, found["prototype"])

        rows[name] = alternately({"ours": mine, "prototype": theirs}, repeats)
        differs = np.abs(found["ours"] - found["prototype"]).max(-1) > 1e-5
        inside = tetra.owners(nodes, ordered, shape) >= 0
        figures[f"{name}_voxels_that_differ"] = int((differs & inside).sum())
    nodes, tetrahedra, alpha = meshes["rasterise_10"]
    K = alpha.shape[1]
    peer = mesh_numba.Mesh(nodes, tetrahedra, alpha)
    ordered = tetrahedra[tetra.spatial_order(nodes, tetrahedra)]
    lik = rasterize(nodes, ordered, alpha, shape) + np.float32(0.02)
    figures |= {"nodes": len(nodes), "tetrahedra": len(tetrahedra), "grid": "×".join(map(str, shape))}
    lik *= 0.5 + rng.random((1, 1, shape[2], K), np.float32)
    lik /= lik[..., :1].copy()
    incidence = tetra_cost.build_incidence(ordered, len(nodes))
    # Some deformation, none at the border: at rest energy and gradient vanish.
    wave = np.sin(np.pi * (nodes + 0.5) / shape).prod(1)
    moved = nodes + wave[:, None] * np.array([1.5, -1.0, 0.5])
    costs = {}

    def data():
        costs["ours"], shares = tetra_cost.data_cost(moved, ordered, alpha, lik, 0)
        return shares

    def peer_data():
        costs["prototype"] = peer.data(moved, lik)

    rows["data_cost"] = alternately({"ours": data, "prototype": peer_data}, repeats)
    figures["data_cost_relative_difference"] = abs(costs["ours"] / costs["prototype"] - 1)

    def prior():
        costs["ours"], _ = tetra_prior.elastic_energy(moved, nodes, ordered, peer.stiff)

    def peer_prior():
        costs["prototype"] = peer.prior(moved)

    rows["deformation_prior"] = alternately({"ours": prior, "prototype": peer_prior}, repeats)
    figures["deformation_prior_relative_difference"] = abs(costs["ours"] / costs["prototype"] - 1)

    def total():
        shares = data()
        _, shares = tetra_prior.elastic_energy(moved, nodes, ordered, peer.stiff, onto=shares)
        return tetra_cost.gather(shares, incidence)

    rows["total_cost"] = alternately(
        {"ours": total, "prototype": lambda: peer.cost_grad(moved, lik)}, repeats
    )
    slope, other = total(), peer.cost_grad(moved, lik)[1]
    figures["gradient_relative_difference"] = float(np.linalg.norm(slope - other) / np.linalg.norm(other))
    return rows, figures


# ---- voxel passes ------------------------------------------------------------------------------------------


def head(shape, rng, K):
    """As in the prototype's own benchmark: brain in a ball in air, orbits in a part of it."""
    x, y, z = np.meshgrid(
        *(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij", sparse=True
    )
    r = x**2 + y**2 + z**2
    inside, brain = r < 1.12, r < 0.455
    pi = np.zeros((*shape, K), np.float32)
    waves = [np.sin(4 * x + 3 * y + 5 * z + k) for k in range(4)]
    for k, l in enumerate((10, 11, 12, 14)):  # everywhere in the brain; others are local
        pi[..., l] = np.where(brain, np.maximum(0.5 + 0.5 * waves[k], 0.01), 0)
    pi[..., 13] = np.where(brain & (x < -0.3) & (np.abs(z) < 0.2), 0.5, 0)
    for l, side in ((15, 1), (16, -1)):
        pi[..., l] = np.where(brain & (np.abs(x) < 0.2) & (np.abs(z - 0.25 * side) < 0.12), 0.3, 0)
    pi[..., 0] = np.where(brain, 0.01, 1)
    pi[..., 1:10] = (~brain & (y < -0.5) & (np.abs(x) < 0.3))[..., None] * np.float32(0.1)
    pi /= pi.sum(-1, keepdims=True)
    return inside.astype(np.uint8), pi


def groups_of(vn, tumor):
    """The prototype's table of mixtures as ours reads it; `tumor` are weights of edema and core."""
    level = np.zeros(12, np.int64)
    level[10], level[11] = 1, 2
    of_entry = np.repeat(level, np.diff(vn.LAB_START))
    weight = np.array([1.0, *tumor], np.float32)[of_entry]
    order = np.lexsort((vn.LAB_LIST, of_entry)).astype(np.int64)
    return Groups(vn.COMP_GMM.astype(np.int64), vn.LAB_START, vn.LAB_LIST, weight, level, order)


def voxel_passes(repeats: int, quick: bool) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    import em_numba
    import voxel_numba as vn

    rng = np.random.default_rng(0)
    shape = (60, 72, 60) if quick else (181, 217, 181)
    mask, pi = head(shape, rng, vn.K)
    d = rng.standard_normal((vn.N, *shape), np.float32)
    a = 0.22 * rng.standard_normal((vn.NC, vn.N, vn.N))
    C = 0.05 * rng.standard_normal((vn.N, 4, 4, 4))
    C[:, 0, 0, 0] = 0
    gamma = np.repeat(1 / vn.G_OF_GMM, vn.G_OF_GMM)
    mu, Sigma = rng.standard_normal((vn.NC, vn.N)), a @ a.swapaxes(1, 2) + 0.05 * np.eye(vn.N)
    theta = Theta(gamma, mu, Sigma, C)

    # The prototype's arguments: whitening by inverse Cholesky factors, rows of the mask, prior row by row.
    L = np.linalg.inv(np.linalg.cholesky(Sigma))
    low = np.tril_indices(vn.N)
    log_norm = np.log(gamma) - vn.N / 2 * np.log(2 * np.pi) + np.log(np.linalg.det(L))
    gaussians = (L[:, low[0], low[1]], np.einsum("tij,tj->ti", L, mu), log_norm)
    gaussians = tuple(x.astype(np.float32) for x in gaussians)
    some = mask.any(2)
    begin = np.where(some, mask.argmax(2), 0)
    end = np.where(some, shape[2] - mask[:, :, ::-1].argmax(2), 0)
    prior = np.ascontiguousarray(pi.transpose(0, 1, 3, 2))
    cz, cy, cx = (vn.dct_tables(n) for n in shape)
    moments = [np.zeros((shape[0], vn.NC, *rest)) for rest in ((16,), (8, 8), (4, 4, 4))]
    labels = [np.zeros(shape, np.uint8) for _ in range(3)]
    field_z, field_y = np.full(shape, -2, np.float32), np.full(shape, -0.5, np.float32)
    given = (d, mask, begin, end, prior)
    bias = C.astype(np.float32)

    v = joint.build_volume(d, mask)
    free, packed = groups_of(vn, (1.0, 1.0)), joint.pack_prior(v, pi)
    before = joint.Labels(*(np.zeros(shape, np.uint8) for _ in range(3)))
    counts: dict[str, np.ndarray] = {}

    def draw():
        found = joint.draw(v, packed, free, theta, (field_z, field_y), before, (1, 1))
        counts["ours"] = found[1].n

    def peer_draw():
        vn.sweep(
            *given, field_z, field_y, *gaussians, bias, cx, cy, cz, np.uint32(1), *labels, *moments,
            vn.COMP_GMM, vn.COMP_START, vn.LAB_START, vn.LAB_LIST, True,
        )  # fmt: skip
        counts["prototype"] = moments[0].sum(0)[:, 0]

    rows = {"voxel_sweep": alternately({"ours": draw, "prototype": peer_draw}, repeats)}
    figures: dict[str, float] = {"voxels": int(mask.sum())}
    # Counts of two independent draws: in units of their spread.
    spread = np.sqrt(counts["ours"] + counts["prototype"] + 1)
    figures["voxel_sweep_largest_score"] = float(
        np.abs((counts["ours"] - counts["prototype"]) / spread).max()
    )

    log_z, log_y = np.log(0.05 / 0.9), 0.0
    flat = groups_of(vn, (np.exp(log_z), np.exp(log_z + log_y)))
    cost, turned = np.zeros(shape[0]), np.ascontiguousarray(cx.T)

    def expect():
        found = joint.expect(v, pi, flat, theta)
        counts["ours"] = found[0].n

    def peer_expect():
        em_numba.em_sweep(
            *given, log_z, log_y, *gaussians, bias, turned, cy, cz, *moments, cost,
            vn.COMP_GMM, vn.LAB_START, vn.LAB_LIST,
        )  # fmt: skip
        counts["prototype"] = moments[0].sum(0)[:, 0]

    rows["gem_iteration"] = alternately({"ours": expect, "prototype": peer_expect}, repeats)
    figures["gem_counts_relative_difference"] = float(np.abs(counts["ours"] / counts["prototype"] - 1).max())
    return rows, figures


# ---- report ------------------------------------------------------------------------------------------------

NAMES = {
    "dense": "field, 40 random filters", "shipped_z": "field, shipped prior of z",
    "shipped_y": "field, shipped prior of y", "rasterise_17": "rasterization, 17 labels",
    "rasterise_10": "rasterization, 10 classes",
    "rasterise_atlas": "rasterization, shipped atlas", "data_cost": "data cost and gradient, 10 classes",
    "deformation_prior": "deformation prior and gradient", "total_cost": "both, gathered per node",
    "voxel_sweep": "sampler's voxel sweep", "gem_iteration": "GEM iteration: expectation and moments",
}  # fmt: skip
PARTS = {"brain": "whole brain", "active": "tumor + 10 mm", "f32": "single-precision tables",
         "i16": "16-bit tables"}  # fmt: skip


def title(name: str) -> str:
    for key, text in NAMES.items():
        if name == key:
            return text
        if name.startswith(key + "_"):
            return ", ".join([text, *(PARTS[part] for part in name[len(key) + 1 :].split("_"))])
    return name


def page(rows: dict[str, dict[str, float]], figures: dict[str, float], repeats: int, load: float) -> str:
    about = ABOUT.format(
        repeats=repeats, goal=GOAL, load=load, brain=figures["brain_places"], near=figures["active_places"],
        **{k: figures[k] for k in ("nodes", "tetrahedra", "grid", "voxels")},
    )  # fmt: skip
    lines = ["# Kernels next to their prototypes", "", about, "| kernel | ours, s | prototype, s | ratio |",
             "|---|---|---|---|"]  # fmt: skip
    for name, s in rows.items():
        ratio = s["ours"] / s["prototype"]
        mark = "" if ratio <= GOAL else " (above the goal)"
        lines.append(f"| {title(name)} | {s['ours']:.4f} | {s['prototype']:.4f} | {ratio:.2f}{mark} |")
    lines += ["", "How far results agree:", "", "| figure | value |", "|---|---|"]
    shown = {k: f for k, f in figures.items() if "differ" in k or "score" in k}
    return "\n".join([*lines, *(f"| {k} | {f:.3g} |" for k, f in shown.items()), ""])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true", help="small sizes, fewer comparisons")
    quick = options.parse_args().quick
    sys.path.insert(0, str(folder()))
    repeats = 2 if quick else 7
    load = os.getloadavg()[0]
    nb.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    figures: dict[str, float] = {}
    with threadpool_limits(1):
        for part in (fields, meshes_and_costs, voxel_passes):
            more, about = part(repeats, quick)
            rows |= more
            figures |= about
            for name, s in more.items():
                print(f"{title(name)}: {s['ours']:.4f} / {s['prototype']:.4f} s", flush=True)
    if not quick:
        target = PROJECT / "research" / "results" / "prototypes.md"
        target.write_text(page(rows, figures, repeats, load), encoding="utf-8")
    figures |= {f"{name}_ratio": round(s["ours"] / s["prototype"], 3) for name, s in rows.items()}
    print(json.dumps(figures | {"load": load}))


if __name__ == "__main__":
    main()
