"""Merges; those into quantized bases are tried, planned, written, checked, and refused where they would be lost."""
