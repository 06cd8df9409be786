"""Benchmarks of training: rows of speed and memory, phases of an update, and sweeps of whole runs."""
