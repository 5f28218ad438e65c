"""Models that run in this process."""
