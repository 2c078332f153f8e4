"""Use cases, called by the command line and the Python API."""
