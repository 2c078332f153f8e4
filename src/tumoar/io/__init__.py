"""Files in and out: the only place that reads or writes images and models."""
