"""Inference: Algorithm 2 (GEM) and Algorithm 1 (Gibbs sampler), section 2.3 of the paper."""
