"""Recordings of earlier runs: kept on disk, and found by all that they depend on."""
