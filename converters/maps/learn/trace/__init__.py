"""What a class does to tensors, recorded and brought into normal form."""
