"""GELU as models write it out (Hendrycks and Gimpel 2016): by ``tanh``, or by ``erf``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ..draft import Draft, is_call


def fuse_gelu(draft: Draft) -> None:
    """Let one operation do what eight do; the cube of x is then no power."""
    for node in draft.calls():
        for half, curve in _products(node):
            x = _scaled(half, 0.5)
            form = None if x is None else _form(curve, x)
            if x is not None and form is not None:
                fused = draft.add(node, torch.ops.aten.gelu.default, x)
                fused.kwargs = {"approximate": form}
                draft.replace(node, fused)
                break


def _form(curve: Any, x: Any) -> str | None:
    """Return which form of GELU it is if CURVE is 1 + tanh(...) or 1 + erf(...) of X."""
    inner = _plus(curve, 1.0)
    if is_call(inner, "tanh.default") and _is_tanh_argument(inner.args[0], x):
        return "tanh"
    if is_call(inner, "erf.default") and _is_erf_argument(inner.args[0], x):
        return "none"
    return None


def _is_tanh_argument(node: Any, x: Any) -> bool:
    """Tell whether NODE is sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    total = _scaled(node, math.sqrt(2 / math.pi))
    if not is_call(total, "add.Tensor") or total is None or total.kwargs:
        return False
    for plain, cubic in (total.args, total.args[::-1]):
        cube = _scaled(cubic, 0.044715)
        if plain is x and is_call(cube, "pow.Tensor_Scalar"):
            return cube is not None and cube.args[0] is x and cube.args[1] == 3
    return False


def _is_erf_argument(node: Any, x: Any) -> bool:
    """Tell whether NODE is x / sqrt(2)."""
    if is_call(node, "div.Tensor"):
        return node.args[0] is x and _near(node.args[1], math.sqrt(2))
    return _scaled(node, math.sqrt(0.5)) is x


def _products(node: Any) -> tuple[tuple[Any, Any], ...]:
    if not is_call(node, "mul.Tensor"):
        return ()
    one, other = node.args
    return (one, other), (other, one)


def _scaled(node: Any, factor: float) -> Any:
    """Return x where NODE is FACTOR * x."""
    for x, scale in _products(node):
        if isinstance(x, Node) and _near(scale, factor):
            return x
    return None


def _plus(node: Any, number: float) -> Any:
    if not is_call(node, "add.Tensor") or node.kwargs:
        return None
    one, other = node.args
    return one if _near(other, number) else None


def _near(value: Any, wanted: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=1e-6)
