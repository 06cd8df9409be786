"""ONNX: PyTorch modules exported as graphs, their weights inside the file or beside it."""
