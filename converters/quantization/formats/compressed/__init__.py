"""compressed-tensors: what its configuration says."""
