"""Algorithm 2 against SAMSEG: one iteration of the mixture, one evaluation of the mesh; and the whole of it.

python benchmarks/fit.py [--quick] [--samseg-python PATH]

SAMSEG's own level-2 atlas lies on a 1 mm head; two contrasts are drawn from it. Both sides fit the same
mixture (as many Gaussians per class as SAMSEG has, full covariances, 4 x 4 x 4 cosines of bias field) to the
same voxels, and evaluate cost and gradient of the same mesh, on one thread in this one run; figures are
ratios of CPU time, the best of several repeats. The peer needs an interpreter with the `samseg` package
(option, or environment variable TUMOAR_SAMSEG_PYTHON); without it the comparison is skipped, visibly. The
whole of Algorithm 2, from placement to the last iteration, runs on a patient drawn from the shipped model,
with T1c, FLAIR and T2 at 1 mm, on as many threads as there are cores, two at most.

Prints, as its last line, one JSON object; the full run writes research/results/fit.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numba as nb
import numpy as np
from mesh import ROOT, best, classes_of, drawn_image, head_grid, samseg_folder, table
from nibabel import load
from threadpoolctl import threadpool_limits

from tumoar.inference import gem
from tumoar.io.models import default_model
from tumoar.io.samseg import MESH, import_samseg
from tumoar.model import deformation, joint
from tumoar.model.atlas import place
from tumoar.model.conditionals import mode, update_theta
from tumoar.model.gmm import Theta
from tumoar.model.theta_prior import build_theta_prior
from tumoar.numerics import tetra
from tumoar.numerics.tetra_cost import merge_labels
from tumoar.numerics.tetra_raster import rasterize
from tumoar.numerics.voxels import UNUSED, WITH_DATA
from tumoar.placement.affine import place_affine
from tumoar.preprocess.case import build_case
from tumoar.simulate import Acquisition, draw_patient
from tumoar.vocabulary.config import GemConfig
from tumoar.vocabulary.contrasts import find_contrast

CONTRASTS = 2
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def against_peer(python: str, repeats: int, spacing: float) -> dict[str, float]:
    """Ratios of CPU time per iteration and per evaluation, and how far the two agree."""
    folder = samseg_folder(python)
    atlas = import_samseg(folder)
    labels, columns = atlas.labels, joint.assign_columns(atlas.labels)
    grid = head_grid(tuple(int(n / spacing) for n in (194, 201, 143)), spacing)
    placed = place(atlas, np.eye(4), grid)
    alpha = merge_labels(atlas.alpha, columns)
    background = int(columns[atlas.background])
    pi = rasterize(placed.reference, placed.tetrahedra, alpha, placed.shape, background)
    # The peer's classes are our mixtures, the background first; ours separate brain from the rest as well.
    into, C = classes_of(atlas)
    x_of_class = np.zeros(C, np.int64)
    x_of_class[into] = labels.x_of_l
    G = labels.G[x_of_class]
    rng = np.random.default_rng(0)
    means = rng.uniform(1, 4, (C, CONTRASTS))
    by_class = rasterize(
        placed.reference, placed.tetrahedra, merge_labels(atlas.alpha, into), placed.shape, 0
    )
    images = np.stack([drawn_image(by_class, means[:, n], rng) for n in range(CONTRASTS)])
    inside = tetra.owners(placed.reference, placed.tetrahedra, placed.shape) >= 0
    mask = (images != 0).all(0) & inside  # beyond the mesh the peer has no prior

    # The same start on both sides: means of a class apart, one covariance.
    first = np.concatenate([m + 0.3 * (np.arange(g)[:, None] - (g - 1) / 2) for m, g in zip(means, G)])
    mu, gamma = np.tile(means.mean(0), (labels.Q, 1)), (1 / labels.G)[labels.x_of_component]
    mu[np.concatenate([np.arange(labels.Q)[labels.component_slice(x)] for x in x_of_class])] = first
    Sigma = 0.1 * np.eye(CONTRASTS)
    theta = Theta(gamma, mu, np.tile(Sigma, (labels.Q, 1, 1)), np.zeros((CONTRASTS, 4, 4, 4)))

    D = np.where(mask, images, np.nan).astype(np.float32)
    volume = joint.build_volume(D, np.where(mask, WITH_DATA, UNUSED).astype(np.uint8))
    groups = joint.compile_groups(labels, columns, joint.Flat(w=1e-9))  # the peer knows of no tumor
    expected = np.bincount(x_of_class, by_class[mask].sum(0), minlength=labels.X)
    prior = build_theta_prior(
        labels,
        (find_contrast("other"),) * CONTRASTS,
        mean=images[:, mask].mean(1),
        variance=images[:, mask].var(1),
        voxels=int(mask.sum()),
        expected=expected,
    )

    def iterate():
        moments, likelihood = joint.expect(volume, pi, groups, theta)
        return likelihood + prior.log_prob(theta), update_theta(theta, moments, prior, mode)

    L = np.empty((*placed.shape, alpha.shape[1]), np.float32)
    joint.class_likelihoods(volume, groups, theta, L, background)
    iterate()
    deformation.cost(placed, placed.reference, alpha, L, background)
    mine = {
        "iteration": best(iterate, repeats),
        "likelihoods": best(lambda: joint.class_likelihoods(volume, groups, theta, L, background), repeats),
        "evaluation": best(lambda: deformation.cost(placed, placed.reference, alpha, L, background), repeats),
    }
    log_likelihood = joint.expect(volume, pi, groups, theta)[1]

    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "in.npz"), Path(scratch, "out.npz")
        np.savez(
            source,
            mesh=str(folder / MESH),
            transform=np.asfortranarray(grid.inverse @ load(folder / "template.nii.gz").affine),
            stiffness=atlas.stiffness,
            fractions=np.eye(C)[:, into],
            images=images,
            mask=mask,
            components=G,
            means=first,
            variances=np.tile(Sigma, (len(first), 1, 1)),
            weights=np.repeat(1 / G, G),
        )
        script = Path(__file__).with_name("fit_peer.py")
        command = [python, str(script), str(source), str(target), str(repeats)]
        subprocess.run(command, check=True, env={**os.environ, **ONE_THREAD})
        with np.load(target) as found:
            peer = {key: float(found[key]) for key in found.files}
    return {
        "voxels_with_data": int(mask.sum()),
        "gaussians": len(first),
        "iteration_s": mine["iteration"],
        "peer_iteration_s": peer["iteration"],
        "iteration_ratio": peer["iteration"] / mine["iteration"],
        "evaluation_s": mine["evaluation"],
        "peer_evaluation_s": peer["evaluation"],
        "evaluation_ratio": peer["evaluation"] / mine["evaluation"],
        "likelihoods_before_evaluations_s": mine["likelihoods"],
        "log_likelihood_relative_difference": abs(peer["log_likelihood"] / log_likelihood - 1),
    }


def whole(threads: int) -> dict[str, float]:
    """Placement and Algorithm 2 on a patient drawn from the model, compiled code warm."""
    model = default_model()
    scans = [Acquisition(name) for name in ("T1c", "FLAIR", "T2")]
    images, _ = draw_patient(model, scans, seed=1)
    case = build_case(images, register=False)
    config = GemConfig()
    nb.set_num_threads(threads)
    short = config.model_copy(update={"outer_iterations": 1, "em_iterations": 1, "deformation_steps": 1})
    gem.fit(case, model.atlas, place_affine(case, model.atlas).matrix, model.tumor_mm3, short)

    wall, cpu = time.perf_counter(), time.process_time()
    placement = place_affine(case, model.atlas)
    between = time.perf_counter()
    fit = gem.fit(case, model.atlas, placement.matrix, model.tumor_mm3, config)
    end = time.perf_counter()
    nb.set_num_threads(1)
    return {
        "whole_threads": threads,
        "whole_voxels": int(np.prod(case.grid.shape)),
        "whole_place_s": between - wall,
        "whole_algorithm_2_s": end - between,
        "whole_cpu_s": time.process_time() - cpu,
        "whole_em_iterations": sum(step.kind == "theta" for step in fit.trace),
        "whole_deformations": sum(step.kind == "nodes" for step in fit.trace),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true", help="2 mm, and no whole fit")
    options.add_argument("--samseg-python", default=os.environ.get("TUMOAR_SAMSEG_PYTHON"))
    given = options.parse_args()
    nb.set_num_threads(1)
    figures: dict[str, float] = {"load_average_before": os.getloadavg()[0]}
    with threadpool_limits(1, "blas"):
        if given.samseg_python:
            figures |= against_peer(given.samseg_python, 2 if given.quick else 3, 2.0 if given.quick else 1.0)
        else:
            print("SKIPPED: comparison with SAMSEG (no interpreter given, see --samseg-python)")
        if not given.quick:
            figures |= {"load_average_between": os.getloadavg()[0]}
            figures |= whole(min(2, nb.config.NUMBA_NUM_THREADS))
    print(table(figures))
    if not given.quick:
        header = (
            "# Algorithm 2\n\nWritten by `python benchmarks/fit.py`. Iterations and evaluations: one thread, "
            "CPU seconds, best of several; a ratio is the peer's time over ours, in one run on one machine. "
            "The whole: wall seconds, which other work on the machine lengthens (see load averages).\n\n"
        )
        (ROOT / "research" / "results" / "fit.md").write_text(header + table(figures), encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
