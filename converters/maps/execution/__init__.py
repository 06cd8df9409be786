"""A bound map carried out: bytes moved from the sources to the targets."""
