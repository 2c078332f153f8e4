"""Shape priors of binary maps: flat, convolutional RBM, first-order MRF."""
