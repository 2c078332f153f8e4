"""Use cases: a request in, a result out; what the command line and Python both call."""
