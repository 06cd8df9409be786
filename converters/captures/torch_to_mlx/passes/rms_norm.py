"""Root mean square norms (Zhang and Sennrich 2019, equation 4), as models write them out.

``w * (x / sqrt(mean(x^2) + eps))``, also with x widened to float32 and narrowed before the weight
(Llama, Qwen, T5), or with ``1 + w`` as the weight (Gemma).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

from ..sites import sites_of
from .draft import Draft, is_call, recorded

FUSED: Final = (torch.float32, torch.bfloat16, torch.float16)  # MLX computes in float32
CASTS: Final = ("_to_copy.default", "type_as.default", "to.dtype")


class _Norm(NamedTuple):
    """A norm without its weight: the node that it is, what it normalizes, and eps."""

    node: Any
    x: Any
    eps: float


def fuse_rms_norm(draft: Draft) -> None:
    """Let one operation do what norms of root mean squares do in five to eight."""
    for node in draft.calls():
        norm = _norm(node)
        if norm is not None:
            _fuse(draft, norm)


def _norm(node: Any) -> _Norm | None:
    """Return the norm that NODE is: x * rsqrt(mean(x^2) + eps)."""
    if not is_call(node, "mul.Tensor"):
        return None
    for x, factor in (node.args, node.args[::-1]):
        eps = _eps(factor, x)
        if isinstance(x, Node) and eps is not None:
            return _Norm(node, x, eps)
    return None


def _eps(factor: Any, x: Any) -> float | None:
    """Return eps where FACTOR is rsqrt(mean(x^2) + eps) over the last axis of X."""
    if (is_call(factor, "pow.Tensor_Scalar") and factor.args[1] == -0.5) or is_call(
        factor, "rsqrt.default"
    ):
        total = factor.args[0]
    else:
        return None
    if not is_call(total, "add.Tensor") or not isinstance(total.args[1], int | float):
        return None
    mean, eps = total.args
    return float(eps) if _squares(mean, x) else None


def _squares(mean: Any, x: Any) -> bool:
    """Tell whether MEAN is that of the squares of X, or of X widened, over its last axis."""
    if not is_call(mean, "mean.dim") or len(mean.args) < 3 or not mean.args[2]:
        return False
    square, axes = mean.args[:2]
    value = recorded(square)
    if value is None or list(axes) not in ([-1], [value.ndim - 1]):
        return False
    return _narrow(_root(square)) is _narrow(x) and _narrow(x) is not None


def _root(square: Any) -> Any:
    """Return y of y^2."""
    if is_call(square, "pow.Tensor_Scalar") and square.args[1] == 2:
        return square.args[0]
    twice = is_call(square, "mul.Tensor") and square.args[0] is square.args[1]
    return square.args[0] if twice or is_call(square, "square.default") else None


def _narrow(x: Any) -> Any:
    """Return what X was widened from to float32, or X."""
    wide = is_call(x, *CASTS) and _dtype(x) == torch.float32 and _dtype(x.args[0]) in FUSED
    return x.args[0] if wide else x


def _dtype(node: Any) -> torch.dtype | None:
    value = recorded(node)
    return None if value is None else value.dtype


def _fuse(draft: Draft, norm: _Norm) -> None:
    """Put a fused norm in the place of NORM and, where it has one, its weight."""
    x = _narrow(norm.x)
    width = x.meta["val"].shape[-1]
    if type(width) is not int or _dtype(x) not in FUSED:
        return
    last, weight = _weighted(norm.node, x, width)
    source = x if _dtype(last) == _dtype(x) else norm.x
    if _dtype(last) == _dtype(source):
        call = torch.ops.aten.rms_norm.default
        draft.replace(last, draft.add(last, call, source, [width], weight, norm.eps))


def _weighted(node: Any, x: Any, width: int) -> tuple[Node, Node | None]:
    """Return the product of NODE and a weight per feature, else NODE, narrowed if that follows."""
    last = node
    user = _only_user(last)
    if user is not None and is_call(user, *CASTS) and _dtype(user) == _dtype(x):
        last, user = user, _only_user(user)
    if user is not None and is_call(user, "mul.Tensor") and not sites_of(last):
        weight = user.args[1] if user.args[0] is last else user.args[0]
        value = recorded(weight)
        fits = value is not None and tuple(value.shape) == (width,) and value.dtype == _dtype(last)
        if fits and _dtype(user) == _dtype(last):
            return user, weight
    return last, None


def _only_user(node: Any) -> Any:
    return next(iter(node.users)) if len(node.users) == 1 and not sites_of(node) else None
