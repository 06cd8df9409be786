"""Adapters measured: merges, what survives them, conversions between dialects."""
