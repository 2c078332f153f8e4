"""Numerical kernels and distributions: arrays in, arrays out, no medical words."""
