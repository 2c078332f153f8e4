"""Where the atlas lies at the start."""
