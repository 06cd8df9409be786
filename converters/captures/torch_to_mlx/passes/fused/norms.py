"""Norms over the last axis, as models write them out.

Root mean square norms (Zhang and Sennrich 2019, equation 4): ``w * (x / sqrt(mean(x^2) + eps))``, or with
``1 + w`` as the weight (Gemma). Layer norms (Ba et al. 2016, equation 3): ``w * (x - mean) / sqrt(var + eps) + b``,
the variance being that of all values and not an estimate. Both also with x widened to float32 and narrowed
before the weight (Llama, Qwen, T5).
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..draft import Draft, is_call, schema_arguments
from .roots import fuse_norm, is_last, mean_of, narrow, quotients, root_of, shifted

RMS_NORM: Final = torch.ops.aten.rms_norm.default
LAYER_NORM: Final = torch.ops.aten.layer_norm.default


def fuse_rms_norm(draft: Draft) -> None:
    """Let one operation do what norms of root mean squares do in five to eight."""
    for node in draft.calls():
        for x, total in quotients(node):
            mean, eps = shifted(total)
            if eps is not None and _is_mean_square(mean, x):
                fuse_norm(draft, node, x, eps, RMS_NORM, "mul.Tensor")
                break


def _is_mean_square(mean: Any, x: Any) -> bool:
    """Tell whether MEAN is that of the squares of X, or of X widened, over its last axis."""
    return narrow(x) is not None and narrow(root_of(mean_of(mean))) is narrow(x)


def fuse_layer_norm(draft: Draft) -> None:
    """Let one operation do what written out layer norms do in six to ten."""
    for node in draft.calls():
        for centred, total in quotients(node):
            spread, eps = shifted(total)
            x = _source(centred)
            if eps is not None and x is not None and _varies(spread, x):
                fuse_norm(draft, node, x, eps, LAYER_NORM, "mul.Tensor", "add.Tensor")
                break


def _source(node: Any) -> Any:
    """Return x where NODE is x less its mean."""
    if not is_call(node, "sub.Tensor") or node.kwargs:
        return None
    x, mean = node.args
    return x if mean_of(mean) is x else None


def _varies(spread: Any, x: Any) -> bool:
    """Tell whether SPREAD is the variance of X over its last axis."""
    if is_call(spread, "var.correction", "var.dim"):
        given = schema_arguments(spread)
        whole = given["correction"] == 0 if "correction" in given else not given["unbiased"]
        return given["self"] is x and whole and given["keepdim"] and is_last(x, given["dim"])
    root = root_of(mean_of(spread))
    return root is not None and _source(root) is x
