"""Models that are never whole in memory: a weight is read when it is used and forgotten after."""
