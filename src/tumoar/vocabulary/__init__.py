"""Labels, contrasts, settings, structure names and errors."""
