"""Parts that mend detectors of mlx-vlm."""
