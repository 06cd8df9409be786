"""Programs: tensors that no layout explains, computed by MLX's primitives."""
