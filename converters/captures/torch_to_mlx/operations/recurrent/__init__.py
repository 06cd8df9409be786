"""Recurrent layers and scans: loops over time that keep what their gradient needs."""
