"""Checks before a run: the batches that are looked at, and what makes a value that is not finite."""
