"""Planning a conversion: its map, its config, its adapter's names, and what a map alone cannot bring back."""
