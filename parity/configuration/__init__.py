"""Configurations of both sides: what their code reads, compared after translation."""
