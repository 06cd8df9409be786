"""AdamW in MLX with PyTorch's bias correction, which MLX leaves off and takes in float32."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx import optimizers


class AdamW(optimizers.AdamW):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with the correction ``1 - beta ** t`` exact.

    In float32 ``1 - 0.999 ** t`` loses four digits at t = 1; ``-expm1(t * log(beta))`` loses none.
    """

    def apply_single(
        self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]
    ) -> mx.array:
        """Return the updated PARAMETER and keep the moments in STATE."""
        rate = self.learning_rate.astype(gradient.dtype)
        first, second = self.betas
        step = self.step.astype(mx.float32)
        state["m"] = first * state["m"] + (1 - first) * gradient
        state["v"] = second * state["v"] + (1 - second) * mx.square(gradient)
        mean = state["m"] * (rate / _correction(first, step)).astype(gradient.dtype)
        spread = mx.sqrt(state["v"]) * mx.rsqrt(_correction(second, step)).astype(gradient.dtype)
        decayed = parameter * (1 - rate * self.weight_decay)
        updated: mx.array = decayed - mean / (spread + self.eps)
        return updated


def _correction(beta: float, step: mx.array) -> mx.array:
    """Return 1 - beta ** step."""
    return mx.array(1.0) if beta == 0 else -mx.expm1(step * math.log(beta))
