"""What a segmentation delivers, in memory and on disk."""
