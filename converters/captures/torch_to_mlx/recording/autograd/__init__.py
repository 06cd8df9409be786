"""Uses of ``torch.autograd.Function``: found while a module is recorded, lifted, and run in MLX."""
