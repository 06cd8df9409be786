"""What the metadata of a GGUF file say, held against a model's directory."""
