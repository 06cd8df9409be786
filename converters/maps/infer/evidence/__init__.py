"""What tells which tensor is which: values, and outputs of both modules."""
