"""A map bound to a checkpoint: every tensor paired, every shape checked, nothing moved."""
