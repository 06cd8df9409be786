"""Goldens: recorded inputs and outputs of a source."""
