"""Fourier transforms and windows."""
