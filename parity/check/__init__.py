"""The check: a candidate against a reference, in stages, to a verdict."""
