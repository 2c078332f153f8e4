"""The peer's side of `fit.py`; runs in an environment that has the `samseg` package, not in ours.

python fit_peer.py INPUT.npz OUTPUT.npz REPEATS
"""

import sys

import numpy as np
from mesh_peer import best, placed, silence
from samseg import gems
from samseg.BiasField import BiasField
from samseg.GMM import GMM
from samseg.merge_alphas import kvlMergeAlphas
from samseg.utilities import requireNumpyArray


def main(source, target, repeats):
    given = np.load(source)
    mask, buffers = given["mask"], np.moveaxis(given["images"], 0, -1)
    components = [int(g) for g in given["components"]]
    contrasts = buffers.shape[-1]
    collection, transform = placed(given)
    mesh = collection.reference_mesh
    mesh.alphas = kvlMergeAlphas(mesh.alphas, given["fractions"])
    priors = mesh.rasterize_2(mask.shape, -1)[mask] / 65535

    gmm = GMM(components, contrasts, useDiagonalCovarianceMatrices=False)
    bias = BiasField(mask.shape, [n / 3 for n in mask.shape])  # four cosines along each axis
    bias.setBiasFieldCoefficients(np.zeros((4**3, contrasts)))

    def iterate():
        """One pass of its EM loop, from the same parameters every time."""
        gmm.means, gmm.variances = given["means"].copy(), given["variances"].copy()
        gmm.mixtureWeights = given["weights"].copy()
        bias.setBiasFieldCoefficients(np.zeros((4**3, contrasts)))
        data = buffers[mask, :] - bias.getBiasFields(mask)[mask, :]
        posteriors, cost = gmm.getGaussianPosteriors(data, priors)
        gmm.evaluateMinLogPriorOfGMMParameters()
        gmm.fitGMMParameters(data, posteriors)
        bias.fitBiasFieldParameters(buffers, posteriors, gmm.means, gmm.variances, mask)
        return cost

    iteration, cost = best(iterate, repeats)

    images = [gems.KvlImage(requireNumpyArray(np.asfortranarray(image * mask))) for image in given["images"]]
    calculator = gems.KvlCostAndGradientCalculator(
        typeName="AtlasMeshToIntensityImage",
        images=images,
        boundaryCondition="Sliding",
        transform=transform,
        means=given["means"],
        variances=given["variances"],
        mixtureWeights=given["weights"],
        numberOfGaussiansPerClass=components,
    )
    calculator.evaluate_mesh_position_a(mesh)  # fills its cache of likelihoods
    evaluation, _ = best(lambda: calculator.evaluate_mesh_position_a(mesh), repeats)
    np.savez(target, iteration=iteration, evaluation=evaluation, log_likelihood=-cost)


if __name__ == "__main__":
    with silence():
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
