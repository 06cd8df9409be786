"""One file a format of tensors, and what those formats are packed in."""
