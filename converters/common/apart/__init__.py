"""Libraries in processes of their own: one that ends its process does not end ours."""
