"""Quantized weights judged: codes as MLX reads them, as their library loads them, and where they moved."""
