"""Quantized weights: codes as MLX packs them, made dense where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from .linear import gathered_matmul
from .registry import Call, primitive

MODES: Final = ("affine", "mxfp4", "mxfp8", "nvfp4")
OCTET: Final = 8  # codes that fill whole bytes, whatever their width
E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # numbers of 4 bits, OCP MX 5.3.3


def codes(words: Tensor, bits: int) -> Tensor:
    """Return the codes in WORDS, ``(..., words)`` uint32, as int64 ``(..., words * 32 / bits)``.

    >>> codes(torch.tensor([0x76543210], dtype=torch.uint32), 4).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if words.dtype != torch.uint32:
        words = words.to(torch.uint32)
    octets = _split(words.contiguous().view(torch.uint8), bits).long()
    places = torch.arange(OCTET, device=words.device)
    joined = (octets << (8 * places[:bits])).sum(-1, keepdim=True)
    found: Tensor = (joined >> (bits * places)) & ((1 << bits) - 1)
    return found.flatten(-2)


def _split(x: Tensor, size: int) -> Tensor:
    """Return X with its last axis in parts of SIZE."""
    return x.reshape(*x.shape[:-1], -1, size)


def dequantize(parts: Sequence[Tensor], form: Sequence[Any]) -> Tensor:
    """Return the weight that PARTS, codes, scales and perhaps biases, stand for.

    Args:
        parts: as ``mx.quantize`` gives them.
        form: group size, bits, mode.
    """
    words, scales, *biases = parts
    group, bits, mode = form
    found = codes(words, bits)
    values = _split(found if mode == "affine" else numbers(found, mode), group)
    wide = _scales(scales, mode)[..., None]
    made = values.to(wide.dtype) * wide
    moved: Tensor = made + biases[0][..., None] if biases else made
    return moved.flatten(-2)


def numbers(found: Tensor, mode: str) -> Tensor:
    """Return the small floating-point numbers that codes are."""
    if mode == "mxfp8":
        return found.to(torch.uint8).view(torch.float8_e4m3fn).float()
    table = torch.tensor([*E2M1, *(-it for it in E2M1)], device=found.device)
    return table[found]


def _scales(scales: Tensor, mode: str) -> Tensor:
    """Return SCALES as numbers: powers of two by their exponents, or numbers of 8 bits."""
    if mode == "affine":
        return scales
    kind = torch.float8_e4m3fn if mode == "nvfp4" else torch.float8_e8m0fnu
    return scales.view(kind).float()


@primitive("Dequantize", raw=True)
def _dequantize(call: Call) -> Tensor:
    return dequantize(call.inputs, call.arguments)


@primitive("QuantizedMatmul", raw=True)
def _quantized_matmul(call: Call) -> Tensor:
    x, *parts = call.inputs
    *form, mode, transposed = call.arguments
    weight = dequantize(parts, [*form, MODES[mode]]).to(x.dtype)
    return torch.matmul(x, weight.mT if transposed else weight)


@primitive("GatherQMM", raw=True)
def _gather_qmm(call: Call) -> Tensor:
    x, *parts, left, right = call.inputs
    group, bits, mode, transposed, *_ = call.arguments
    weight = dequantize(parts, [group, bits, MODES[mode]]).to(x.dtype)
    return gathered_matmul((x, left), (weight.mT if transposed else weight, right))
