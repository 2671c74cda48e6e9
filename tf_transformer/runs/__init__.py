"""Training runs: the recipe, the run directory, checkpoints, and training from start to end."""
