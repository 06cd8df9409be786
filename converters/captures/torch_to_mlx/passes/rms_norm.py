"""Root mean square norms (Zhang and Sennrich 2019, equation 4), as models write them out.

``w * (x / sqrt(mean(x^2) + eps))``, also with x widened to float32 and narrowed before the weight
(Llama, Qwen, T5), or with ``1 + w`` as the weight (Gemma).
"""

from __future__ import annotations

from typing import Any, Final

import torch

from .draft import Draft
from .roots import fuse_norm, mean_of, narrow, quotients, root_of, shifted

CALL: Final = torch.ops.aten.rms_norm.default


def fuse_rms_norm(draft: Draft) -> None:
    """Let one operation do what norms of root mean squares do in five to eight."""
    for node in draft.calls():
        for x, total in quotients(node):
            mean, eps = shifted(total)
            if eps is not None and _is_mean_square(mean, x):
                fuse_norm(draft, node, x, eps, CALL, "mul.Tensor")
                break


def _is_mean_square(mean: Any, x: Any) -> bool:
    """Tell whether MEAN is that of the squares of X, or of X widened, over its last axis."""
    return narrow(x) is not None and narrow(root_of(mean_of(mean))) is narrow(x)
