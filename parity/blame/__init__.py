"""Which site is at fault, and what kind of fault it has."""
