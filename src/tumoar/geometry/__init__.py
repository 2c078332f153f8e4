"""Voxel grids in world space: images, orientation, resampling, contours, distances."""
