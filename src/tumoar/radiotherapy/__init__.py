"""The clinic's words: doses, limits, margins, structures, export."""
