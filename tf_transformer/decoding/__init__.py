"""Search over any step function."""
