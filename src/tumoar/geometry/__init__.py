"""Images and contours in world space: grids, orientation, resampling, distances."""
