"""Updates merged into weights, and how much of each survives."""
