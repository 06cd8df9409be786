"""Layer norms (Ba et al. 2016, equation 3), as models write them out.

``w * (x - mean) / sqrt(var + eps) + b`` over the last axis, the variance being that of all values and
not an estimate; also with x widened to float32 and narrowed before the weight.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .draft import Draft, is_call, schema_arguments
from .roots import fuse_norm, is_last, mean_of, quotients, root_of, shifted

CALL: Final = torch.ops.aten.layer_norm.default


def fuse_layer_norm(draft: Draft) -> None:
    """Let one operation do what written out layer norms do in six to ten."""
    for node in draft.calls():
        for centred, total in quotients(node):
            spread, eps = shifted(total)
            x = _source(centred)
            if eps is not None and x is not None and _varies(spread, x):
                fuse_norm(draft, node, x, eps, CALL, "mul.Tensor", "add.Tensor")
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
