"""Parts of norms as models write them out: quotients by roots, means and squares over the last axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.fx import Node

from ...sites import sites_of
from ..draft import Draft, is_call, recorded

FUSED: Final = (torch.float32, torch.bfloat16, torch.float16)  # MLX computes in float32
_CASTS: Final = ("_to_copy.default", "type_as.default", "to.dtype")


def quotients(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (x, total) of which NODE is x / sqrt(total)."""
    if is_call(node, "mul.Tensor"):
        for x, factor in (node.args, node.args[::-1]):
            if is_call(factor, "rsqrt.default") or _is_power(factor, -0.5):
                yield x, factor.args[0]
            inverse = (
                factor.args[0] if is_call(factor, "mul.Tensor") and factor.args[1] == 1 else factor
            )
            if is_call(inverse, "reciprocal.default") and _is_root(
                inverse.args[0]
            ):  # 1 / y is 1 * that
                yield x, inverse.args[0].args[0]
    elif is_call(node, "div.Tensor") and _is_root(node.args[1]):
        yield node.args[0], node.args[1].args[0]


def _is_root(node: Any) -> bool:
    return is_call(node, "sqrt.default") or _is_power(node, 0.5)


def _is_power(node: Any, exponent: float) -> bool:
    return is_call(node, "pow.Tensor_Scalar") and node.args[1] == exponent


def shifted(total: Any) -> tuple[Any, float | None]:
    """Return (mean, eps) where TOTAL is mean + eps, eps a number."""
    plain = is_call(total, "add.Tensor") and not total.kwargs
    if plain and isinstance(total.args[1], int | float):
        return total.args[0], float(total.args[1])
    return None, None


def mean_of(node: Any) -> Any:
    """Return x where NODE is the mean of x over its last axis, which stays."""
    if not is_call(node, "mean.dim") or len(node.args) < 3 or not node.args[2]:
        return None
    x, axes = node.args[:2]
    return x if is_last(x, axes) else None


def is_last(x: Any, axes: Any) -> bool:
    """Tell whether AXES is the last one of X alone."""
    value = recorded(x)
    return value is not None and list(axes or ()) in ([-1], [value.ndim - 1])


def root_of(square: Any) -> Any:
    """Return y where SQUARE is y^2."""
    if is_call(square, "pow.Tensor_Scalar") and square.args[1] == 2:
        return square.args[0]
    twice = is_call(square, "mul.Tensor") and square.args[0] is square.args[1]
    return square.args[0] if twice or is_call(square, "square.default") else None


def narrow(x: Any) -> Any:
    """Return what X was widened from to float32, or X."""
    wide = is_call(x, *_CASTS) and dtype_of(x) == torch.float32 and dtype_of(x.args[0]) in FUSED
    return x.args[0] if wide else x


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype of NODE, if it is a tensor."""
    value = recorded(node)
    return None if value is None else value.dtype


def fuse_norm(draft: Draft, node: Any, wide: Any, eps: float, call: Any, *uses: str) -> None:
    """Let CALL norm WIDE in the place of NODE and of its USES, operations with a vector.

    CALL takes the value, its width, a vector or ``None`` for each of USES, and EPS.
    """
    x = narrow(wide)
    width = x.meta["val"].shape[-1]
    if type(width) is not int or dtype_of(x) not in FUSED:
        return
    last, vectors = _narrowed(node, x), []
    for use in uses:
        last, vector = _with_vector(last, use, width)
        vectors.append(vector)
    source = x if dtype_of(last) == dtype_of(x) else wide
    if dtype_of(last) == dtype_of(source):
        draft.replace(last, draft.add(last, call, source, [width], *vectors, eps))


def _narrowed(node: Any, x: Any) -> Any:
    """Return NODE, or its one use if that brings it back to the dtype of X."""
    user = only_user(node)
    return user if is_call(user, *_CASTS) and dtype_of(user) == dtype_of(x) else node


def _with_vector(node: Any, operation: str, width: int) -> tuple[Any, Any]:
    """Return the result of OPERATION (of two operands) on NODE and a vector of WIDTH, and the vector.

    Where NODE is used otherwise, returns NODE and ``None``.
    """
    user = only_user(node)
    if not is_call(user, operation) or user.kwargs:
        return node, None
    vector = user.args[1] if user.args[0] is node else user.args[0]
    value = recorded(vector)
    fits = value is not None and tuple(value.shape) == (width,) and value.dtype == dtype_of(node)
    return (user, vector) if fits and dtype_of(user) == dtype_of(node) else (node, None)


def only_user(node: Node) -> Any:
    """Return what uses NODE, if one thing does, and no submodule returns it."""
    return next(iter(node.users)) if len(node.users) == 1 and not sites_of(node) else None
