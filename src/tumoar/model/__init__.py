"""The generative model: atlas, shape priors, likelihood (section 2 of the paper)."""
