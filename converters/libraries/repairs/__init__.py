"""Repairs: what classes of mlx-lm compute otherwise than config.json says, mended in a ``model.py``."""
