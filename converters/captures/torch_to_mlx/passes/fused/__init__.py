"""Several operations that are one in MLX: attention, norms, rotary positions, gelu."""
