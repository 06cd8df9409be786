"""Parts that mend norms."""
