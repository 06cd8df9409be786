"""Quantized weights of captured modules: frozen codes that the graph computes with as MLX does."""
