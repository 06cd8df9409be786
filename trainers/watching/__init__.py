"""What watches a run, and what is left of one that hangs."""
