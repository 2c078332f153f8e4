"""From a patient's images to a case on one grid."""
