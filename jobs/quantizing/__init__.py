"""Models quantized: which weights and how is the library's word; read, encoded and written in pieces."""
