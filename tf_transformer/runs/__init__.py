"""What makes a run: its recipe, directory and checkpoints, and training from start to end."""
