"""Whether a quantized model was made from an original, from the values of both."""
