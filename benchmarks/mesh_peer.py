"""The peer's side of `mesh.py`; runs in an environment that has the `samseg` package, not in ours.

python mesh_peer.py INPUT.npz OUTPUT.npz REPEATS
"""

import contextlib
import os
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from samseg import gems  # noqa: E402
from samseg.merge_alphas import kvlMergeAlphas  # noqa: E402
from samseg.utilities import requireNumpyArray  # noqa: E402


@contextlib.contextmanager
def silence():
    """The compiled core writes to standard output."""
    sys.stdout.flush()
    kept, sink = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)


def best(function, repeats):
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def placed(given):
    """Its mesh collection where ours lies, and the transform that brought it there."""
    gems.setGlobalDefaultNumberOfThreads(1)
    transform = gems.KvlTransform(requireNumpyArray(given["transform"]))
    collection = gems.KvlMeshCollection()
    collection.read(str(given["mesh"]))
    collection.k = float(given["stiffness"])
    collection.transform(transform)
    return collection, transform


def main(source, target, repeats):
    given = np.load(source)
    shape = tuple(int(n) for n in given["shape"])
    collection, transform = placed(given)
    mesh = collection.reference_mesh
    seconds_all, _ = best(lambda: mesh.rasterize_2(shape, -1), repeats)
    mesh.alphas = kvlMergeAlphas(mesh.alphas, given["fractions"])
    seconds_classes, probabilities = best(lambda: mesh.rasterize_2(shape, -1), repeats)
    image = gems.KvlImage(requireNumpyArray(np.asfortranarray(given["image"])))
    calculator = gems.KvlCostAndGradientCalculator(
        typeName="AtlasMeshToIntensityImage",
        images=[image],
        boundaryCondition="Sliding",
        transform=transform,
        means=given["means"][:, None],
        variances=given["variances"][:, None, None],
        mixtureWeights=np.ones(len(given["means"])),
        numberOfGaussiansPerClass=[1] * len(given["means"]),
    )
    calculator.evaluate_mesh_position_a(mesh)  # fills its cache of likelihoods
    seconds_gradient, (cost, gradient) = best(lambda: calculator.evaluate_mesh_position_a(mesh), repeats)
    np.savez(
        target,
        seconds=[seconds_all, seconds_classes, seconds_gradient],
        probabilities=probabilities,
        points=mesh.points,
        cost=cost,
        gradient=gradient,
    )


if __name__ == "__main__":
    with silence():
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
