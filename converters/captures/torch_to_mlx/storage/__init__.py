"""What a captured module holds: where its arrays live, in which dtypes, and what was put in its graph."""
