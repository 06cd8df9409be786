"""Quantized weights: MLX's own formats read exactly, written as MLX does, and compared with originals."""

from __future__ import annotations

from .blocks import Blocks
from .mlx import dequantize, layout, quantize, step
from .recipe import Recipe
from .scheme import Scheme
from .view import Dequantized

__all__ = [
    "Blocks",
    "Dequantized",
    "Recipe",
    "Scheme",
    "dequantize",
    "layout",
    "quantize",
    "step",
]
