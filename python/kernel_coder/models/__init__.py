"""Models that need no download."""
