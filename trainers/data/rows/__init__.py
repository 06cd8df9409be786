"""Rows of files: every format read, checked all together, divided between splits."""
