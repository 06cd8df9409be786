"""Fourier transforms as products of short sums, where a format has none, or a coarse one."""
