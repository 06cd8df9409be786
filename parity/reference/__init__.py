"""The source's own computation in float64, and how far correct implementations may be from it."""
