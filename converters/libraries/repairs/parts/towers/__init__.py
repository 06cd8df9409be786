"""Parts that mend classes of mlx-vlm."""
