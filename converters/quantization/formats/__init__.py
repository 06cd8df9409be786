"""Quantized formats of Hugging Face, one file each: seen as MLX's parts, and written from them."""
