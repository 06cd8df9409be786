"""ML programs judged: their constants, what they say of themselves, and where they overflow."""
