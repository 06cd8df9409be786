"""The atlas: every model type that transformers and mlx-lm share, converted both ways."""
