"""Handlers of ATen operations in MLX, one file per theme; ``registry.handlers()`` is the table."""
