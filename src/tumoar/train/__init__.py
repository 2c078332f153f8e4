"""Training of the atlas and the shape priors from label maps (section 3 of the paper)."""
