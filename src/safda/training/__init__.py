"""Training: the one loop, and the run folder with its checkpoints."""
