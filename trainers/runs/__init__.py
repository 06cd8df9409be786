"""A run under way: updates, checkpoints, what it records and how it goes on."""
