"""Classes of the MLX libraries, loaded from a directory as the libraries themselves load them."""
