"""Merges beside base and update: of another tool, of another share, and what they keep of the sums."""
