"""Kernels that quantize and dequantize activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from .kernel import Function

RANGE: Final[Mapping[str, tuple[int, int]]] = {"int8": (-128, 127), "uint8": (0, 255)}


def along(parameter: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """Reshape a vector of parameters so that it broadcasts along AXIS of X."""
    if parameter.dim() == 0:
        return parameter
    chosen = (axis or 0) % x.dim()
    return parameter.reshape([-1 if i == chosen else 1 for i in range(x.dim())])


def quantize(
    input: Tensor,  # noqa: A002  (MIL's name)
    scale: Tensor,
    zero_point: Tensor | None = None,
    output_dtype: str = "int8",
    axis: int | None = None,
) -> Tensor:
    """Return ``clamp(round(x / scale) + zero_point)``."""
    codes = (input / along(scale, input, axis)).round()
    if zero_point is not None:
        codes = codes + along(zero_point, input, axis)
    return codes.clamp(*RANGE[output_dtype])


def codes_of(
    input: Tensor,  # noqa: A002  (MIL's name)
    scale: Tensor,
    zero_point: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return the codes of ``quantize`` before they are rounded and cut."""
    codes = input / along(scale, input, axis)
    return codes if zero_point is None else codes + along(zero_point, input, axis)


def dequantize(
    input: Tensor,  # noqa: A002  (MIL's name)
    scale: Tensor,
    zero_point: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return ``scale * (codes - zero_point)``."""
    codes = input.float()
    if zero_point is not None:
        codes = codes - along(zero_point, input, axis)
    return codes * along(scale, input, axis)


KERNELS: Final[Mapping[str, Function]] = {"dequantize": dequantize, "quantize": quantize}
