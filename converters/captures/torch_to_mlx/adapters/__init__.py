"""Adapters of captured modules: low-rank updates that are trained beside a frozen weight."""
