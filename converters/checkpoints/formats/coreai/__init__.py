"""Core AI assets: what they say of themselves, and the process in which Apple's runtime opens them."""
