"""Interpolations as products with matrices, where a format has none, or another one."""
