"""The weights of a model found again among the constants of an exported file."""
