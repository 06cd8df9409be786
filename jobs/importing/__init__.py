"""Files that other programs run, brought back: GGUF, Core ML, ONNX and Core AI."""
