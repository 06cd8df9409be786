"""Kernels of MIL operations in PyTorch, one file per theme."""
