"""Blocks of GGUF and parts of MLX: the same codes and scales in another order, row by row."""

from __future__ import annotations

from .decoding import decoded, scheme_of
from .encoding import encoded
from .layouts import BLOCKS
from .routes import Route, route, routes

__all__ = ["BLOCKS", "Route", "decoded", "encoded", "route", "routes", "scheme_of"]
