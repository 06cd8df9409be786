"""Checks before a run and in it: the batches that are looked at, and what makes a value that is not finite."""
