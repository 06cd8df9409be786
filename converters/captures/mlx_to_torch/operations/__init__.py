"""Handlers of MLX primitives in torch, one file per theme; ``registry.handlers()`` is the table."""
