"""mlx-lm's dialect of adapters, read and written."""
