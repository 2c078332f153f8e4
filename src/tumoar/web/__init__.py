"""A page on this machine alone: look at results, correct and approve them, begin new ones."""
