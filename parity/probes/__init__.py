"""Probes: inputs that show what a model does, and the text side."""
