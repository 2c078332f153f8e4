"""Mesh kernels against the compiled core of SAMSEG: rasterization, cost and gradient, scaling, memory.

python benchmarks/mesh.py [--quick] [--samseg-python PATH]

SAMSEG's own level-2 atlas lies on a 1 mm head, turned and scaled a little; an image is drawn from it with
one Gaussian per class. Both sides do the same work on one thread in this one run; the figures are ratios
of CPU time, the best of several repeats each. The peer needs an interpreter with the `samseg` package
(option, or environment variable TUMOAR_SAMSEG_PYTHON); without it a lattice mesh is timed and the
comparison is skipped, visibly.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numba as nb
import numpy as np
from scipy import ndimage as ndi

from tumoar.geometry.image import Grid
from tumoar.io.samseg import MESH, import_samseg
from tumoar.model.atlas import Atlas, Placed, place
from tumoar.numerics import tetra, tetra_cost, tetra_prior
from tumoar.numerics.tetra_raster import rasterize
from tumoar.vocabulary.labels import default_labels

ROOT = Path(__file__).resolve().parents[1]
HEAD = (194, 201, 143)
SIGMA = 0.3


def best(function, repeats, clock=time.process_time):
    seconds = []
    for _ in range(repeats):
        start = clock()
        function()
        seconds.append(clock() - start)
    return min(seconds)


# ---- what is measured --------------------------------------------------------------------------------------


def samseg_folder(python):
    """The atlas folder that the package of this interpreter ships."""
    code = "import samseg; print(samseg.SAMSEGDIR)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()[
        -1
    ]
    return next(Path(found, "atlas").glob("20Subjects*"))


def head_grid(shape=HEAD, spacing=1.0):
    """A grid around the atlas' head, turned by 4 and 2 degrees."""
    a, b = np.deg2rad([4.0, 2.0])
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    tilt = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine = np.eye(4)
    affine[:3, :3] = 0.97 * spacing * turn @ tilt
    affine[:3, 3] = [0.0, -18.0, 10.0] - affine[:3, :3] @ (np.array(shape) / 2 - 0.5)
    return Grid(shape, affine)


def classes_of(atlas):
    """(K,) a class per label: labels of one mixture share it; and how many there are."""
    used, into = np.unique(atlas.labels.x_of_l, return_inverse=True)
    background = into[atlas.background]
    order = [background, *(c for c in range(len(used)) if c != background)]
    return np.argsort(order)[into], len(used)


def drawn_image(pi, means, rng):
    """One intensity per voxel, drawn from the class probabilities; 0 far from the head."""
    label = (rng.random(pi.shape[:3])[..., None] > np.cumsum(pi, -1)).sum(-1).clip(0, len(means) - 1)
    image = means[label] + rng.normal(0, SIGMA, label.shape)
    image[ndi.distance_transform_edt(pi[..., 0] > 0.5) > 10] = 0.0
    return image


def lattice_atlas(K, cell, size):
    """A jittered mesh of cubes cut in six: background around, a smooth mixture of labels inside."""
    from itertools import permutations

    rng = np.random.default_rng(0)
    n = int(size / cell)
    corner = np.stack(np.meshgrid(*[np.arange(n + 1.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    index = np.arange(len(corner)).reshape((n + 1,) * 3)
    cube = index[:-1, :-1, :-1].ravel()
    steps = ((n + 1) ** 2, n + 1, 1)
    tetrahedra = np.concatenate(
        [np.stack([cube, cube + steps[a], cube + steps[a] + steps[b], cube + sum(steps)], 1)
         for a, b, _ in permutations(range(3))]
    )  # fmt: skip
    inner = ((corner > 0) & (corner < n)).all(1)
    nodes = (corner + inner[:, None] * rng.uniform(-0.15, 0.15, corner.shape)) * cell - n * cell / 2
    flipped = tetra.volumes(nodes, tetrahedra) < 0
    tetrahedra[flipped] = tetrahedra[flipped][:, [1, 0, 2, 3]]
    alpha = np.exp(4 * np.sin(nodes @ rng.normal(0, 0.06, (3, K)) + rng.uniform(0, 6, K)))
    alpha[alpha < 0.01 * alpha.max(1, keepdims=True)] = 0.0
    alpha[np.linalg.norm(nodes, axis=1) > 0.4 * size] = np.eye(K)[0]
    return Atlas(nodes, tetrahedra, alpha / alpha.sum(1, keepdims=True), default_labels())


# ---- ours and the peer's -----------------------------------------------------------------------------------


def ours(placed: Placed, alpha, likelihoods, repeats):
    """CPU seconds: all labels, classes, cost + gradient with prior and gather, prior alone."""
    mesh = (placed.reference, placed.tetrahedra)

    def total():
        data, shares = tetra_cost.data_cost(*mesh, alpha, likelihoods, 0)
        energy, shares = tetra_prior.elastic_energy(
            placed.reference, placed.reference, placed.tetrahedra, placed.atlas.stiffness, onto=shares
        )
        return data + energy, tetra_cost.gather(shares, placed.incidence)

    total()
    return {
        "all": best(lambda: rasterize(*mesh, placed.atlas.alpha, placed.shape), repeats),
        "classes": best(lambda: rasterize(*mesh, alpha, placed.shape), repeats),
        "gradient": best(total, repeats),
    }


def against_peer(python, repeats):
    """Ratios of CPU time, and how far the two agree."""
    folder = samseg_folder(python)
    atlas = import_samseg(folder)
    grid = head_grid()
    placed = place(atlas, np.eye(4), grid)
    into, C = classes_of(atlas)
    alpha = tetra_cost.merge_labels(atlas.alpha, into)
    pi = rasterize(placed.reference, placed.tetrahedra, alpha, placed.shape)
    means = np.array([1.0, 4.0, 3.4, 2.2, 2.0, 3.6, 3.9, 2.8])[:C]
    image = drawn_image(pi, means, np.random.default_rng(0))
    log_likelihood = -0.5 * ((image[..., None] - means) / SIGMA) ** 2 - np.log(SIGMA * np.sqrt(2 * np.pi))
    likelihoods = tetra_cost.likelihood_ratios(log_likelihood.copy(), 0, image != 0.0)
    mine = ours(placed, alpha, likelihoods, repeats)

    from nibabel import load

    template = load(folder / "template.nii.gz").affine
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "in.npz"), Path(scratch, "out.npz")
        np.savez(
            source,
            mesh=str(folder / MESH),
            shape=placed.shape,
            transform=np.asfortranarray(grid.inverse @ template),
            stiffness=atlas.stiffness,
            fractions=np.eye(C)[:, into],
            image=image,
            means=means,
            variances=np.full(C, SIGMA**2),
        )
        script = Path(__file__).with_name("mesh_peer.py")
        subprocess.run([python, str(script), str(source), str(target), str(max(1, repeats - 1))], check=True)
        with np.load(target) as found:
            peer = {key: found[key] for key in found.files}

    inside = tetra.owners(placed.reference, placed.tetrahedra, placed.shape) >= 0
    difference = np.abs(peer["probabilities"][inside] / 65535 - pi[inside])
    # The same sum in the peer's own unit: full likelihoods instead of ratios.
    absolute = np.exp(log_likelihood).astype(np.float32) * (image != 0.0)[..., None]
    cost = tetra_cost.data_cost(placed.reference, placed.tetrahedra, alpha, absolute)
    free = placed.kind == 0
    slope = tetra_cost.gather(cost[1], placed.incidence)[free]
    theirs = peer["gradient"][free]
    return {
        "nodes": len(atlas.nodes),
        "tetrahedra": len(atlas.tetrahedra),
        "voxels": int(np.prod(placed.shape)),
        "voxels_with_data": int((image != 0).sum()),
        "rasterise_all_s": mine["all"],
        "rasterise_classes_s": mine["classes"],
        "gradient_s": mine["gradient"],
        "peer_rasterise_all_s": float(peer["seconds"][0]),
        "peer_rasterise_classes_s": float(peer["seconds"][1]),
        "peer_gradient_s": float(peer["seconds"][2]),
        "rasterise_ratio": float(peer["seconds"][0]) / mine["all"],
        "rasterise_classes_ratio": float(peer["seconds"][1]) / mine["classes"],
        "gradient_ratio": float(peer["seconds"][2]) / mine["gradient"],
        "node_difference": float(np.abs(peer["points"] - placed.reference).max()),
        "probability_difference_in_steps_of_16_bit": float(difference.max() * 65535),
        "voxels_differing_by_more_than_2_steps": int((difference.max(-1) * 65535 > 2).sum()),
        "cost_relative_difference": float(abs(cost[0] - peer["cost"]) / abs(cost[0])),
        "gradient_relative_difference": float(np.linalg.norm(slope - theirs) / np.linalg.norm(theirs)),
    }


# ---- scaling and memory ------------------------------------------------------------------------------------


def scaling(repeats, sizes):
    """Wall time of the same mesh on 1 and on 2 threads, and CPU time over voxels."""
    atlas = lattice_atlas(default_labels().K, 6.5, 250.0)
    into, _ = classes_of(atlas)
    alpha = tetra_cost.merge_labels(atlas.alpha, into)
    rng = np.random.default_rng(1)
    figures = {}
    per_voxel = {}
    for n in sizes:
        spacing = 250.0 / n
        affine = np.diag([spacing, spacing, spacing, 1.0])
        affine[:3, 3] = -125.0 + spacing / 2 + 0.01
        placed = place(atlas, np.eye(4), Grid((n, n, n), affine))
        likelihoods = rng.random((n, n, n, alpha.shape[1]), np.float32) + 0.5
        likelihoods[..., 0] = 1.0
        mesh = (placed.reference, placed.tetrahedra)

        def gradient(mesh=mesh, likelihoods=likelihoods):
            tetra_cost.data_cost(*mesh, alpha, likelihoods, 0)

        def raster(mesh=mesh, shape=placed.shape):
            rasterize(*mesh, alpha, shape)

        per_voxel[n] = (best(raster, repeats) / n**3, best(gradient, repeats) / n**3)
        if n == sizes[-1] and nb.config.NUMBA_NUM_THREADS >= 2:
            for name, function in (("rasterise", raster), ("gradient", gradient)):
                seconds = {}
                for threads in (1, 2):
                    nb.set_num_threads(threads)
                    seconds[threads] = best(function, repeats, time.perf_counter)
                nb.set_num_threads(1)
                figures[f"{name}_speedup_2_threads"] = seconds[1] / seconds[2]
    first, last = per_voxel[sizes[0]], per_voxel[sizes[-1]]
    figures["voxels_grow_by"] = (sizes[-1] / sizes[0]) ** 3
    figures["rasterise_time_grows_by"] = last[0] / first[0] * figures["voxels_grow_by"]
    figures["gradient_time_grows_by"] = last[1] / first[1] * figures["voxels_grow_by"]
    return figures


def peak_memory():
    """Peak resident GB of a fresh process that rasterizes 17 labels on 256^3."""
    code = (
        "import re, sys; sys.path.insert(0, sys.argv[1]); import mesh, numpy as np\n"
        "from tumoar.geometry.image import Grid; from tumoar.model.atlas import place, pi\n"
        "a = np.diag([250 / 256] * 3 + [1.0]); a[:3, 3] = -124.5\n"
        "placed = place(mesh.lattice_atlas(17, 6.5, 250.0), np.eye(4), Grid((256,) * 3, a))\n"
        "pi(placed, placed.reference)\n"
        # Not ru_maxrss, which a process inherits from the one that started it.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1e6)"
    )
    folder = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def table(figures):
    rows = [f"| {name} | {value:.4g} |" for name, value in figures.items()]
    return "\n".join(["| figure | value |", "|---|---|", *rows, ""])


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true")
    options.add_argument("--samseg-python", default=os.environ.get("TUMOAR_SAMSEG_PYTHON"))
    given = options.parse_args()
    nb.set_num_threads(1)
    repeats = 2 if given.quick else 3
    # On a busy machine CPU times mean less, and speedups on two threads nothing.
    figures = {"load_average_before": os.getloadavg()[0]}
    if given.samseg_python:
        figures |= against_peer(given.samseg_python, repeats)
    else:
        print("SKIPPED: comparison with SAMSEG (no interpreter given, see --samseg-python)")
    figures |= scaling(repeats, (64, 100) if given.quick else (100, 200))
    if not given.quick:
        figures["peak_memory_gb_256_17"] = peak_memory()
    print(table(figures))
    if not given.quick:
        header = (
            "# Mesh kernels\n\nWritten by `python benchmarks/mesh.py`. One thread, CPU seconds, best of "
            f"{repeats}; a ratio is the peer's time over ours, in one run on one machine.\n\n"
        )
        target = ROOT / "research" / "results" / "mesh.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(header + table(figures), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
