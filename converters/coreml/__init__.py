"""Core ML: PyTorch modules exported as ML programs, on any operating system."""
