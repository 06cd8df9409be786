"""Files that are whole computations, run: ML programs, ONNX and Core AI."""
