"""Parts that mend classes of mlx-embeddings."""
