"""Radiotherapy: doses, limits, margins, structures, export."""
