"""Merging into quantized bases: tried, planned, written, checked; refused where it would be lost."""
