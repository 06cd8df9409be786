"""PEFT's dialect of adapters, read and written."""
