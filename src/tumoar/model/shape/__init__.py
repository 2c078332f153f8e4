"""Shape priors on a binary map: flat, convolutional RBM, first-order MRF."""
