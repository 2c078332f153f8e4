"""Many patients: found in a dataset or a list, one process each, on one machine or a cluster."""
