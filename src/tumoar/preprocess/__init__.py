"""Preprocessing: from input images to a case on one grid."""
