"""Root mean square norms (Zhang and Sennrich 2019, equation 4), as models write them out.

``w * (x / sqrt(mean(x^2) + eps))``, also with x widened to float32 and narrowed before the weight
(Llama, Qwen, T5), or with ``1 + w`` as the weight (Gemma).
"""

from __future__ import annotations

from typing import Any

import torch

from .draft import Draft
from .roots import (
    FUSED,
    dtype_of,
    mean_of,
    narrow,
    narrowed,
    quotients,
    root_of,
    shifted,
    with_vector,
)


def fuse_rms_norm(draft: Draft) -> None:
    """Let one operation do what norms of root mean squares do in five to eight."""
    for node in draft.calls():
        for x, total in quotients(node):
            mean, eps = shifted(total)
            if eps is not None and _is_mean_square(mean, x):
                _fuse(draft, node, x, eps)
                break


def _is_mean_square(mean: Any, x: Any) -> bool:
    """Tell whether MEAN is that of the squares of X, or of X widened, over its last axis."""
    return narrow(x) is not None and narrow(root_of(mean_of(mean))) is narrow(x)


def _fuse(draft: Draft, node: Any, wide: Any, eps: float) -> None:
    """Put a fused norm of WIDE in the place of NODE and, where it has one, its weight."""
    x = narrow(wide)
    width = x.meta["val"].shape[-1]
    if type(width) is not int or dtype_of(x) not in FUSED:
        return
    last, weight = with_vector(narrowed(node, x), "mul.Tensor", width)
    source = x if dtype_of(last) == dtype_of(x) else wide
    if dtype_of(last) == dtype_of(source):
        call = torch.ops.aten.rms_norm.default
        draft.replace(last, draft.add(last, call, source, [width], weight, eps))
