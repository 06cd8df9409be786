"""Files that other programs run, brought back: GGUF, Core ML and ONNX."""
