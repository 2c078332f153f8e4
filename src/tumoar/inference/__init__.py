"""Inference: placing the atlas, Algorithm 2, Algorithm 1 (section 2.3 of the paper)."""
