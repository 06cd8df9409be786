"""Files that are whole computations, run: ML programs and ONNX."""
