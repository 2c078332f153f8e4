"""tumoar: tumors and organs at risk from any scan. For research; not a medical device."""

__version__ = "0.1.0.dev0"
