"""Recurrent layers of any length as ONNX's own operations, by torch's translations of its own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def any_length(module: nn.Module) -> bool:
    """Say whether MODULE has recurrent layers, and all are LSTMs without projections, or GRUs."""
    layers = [it for it in module.modules() if isinstance(it, nn.RNNBase)]
    return bool(layers) and all(
        isinstance(it, nn.LSTM | nn.GRU) and not it.proj_size for it in layers
    )


def translations() -> dict[Any, Callable[..., Any]]:
    """Return what writes layers that ``kept_whole`` recorded, by the operation that each is."""
    from onnxscript.function_libs.torch_lib.ops.core import aten_gru, aten_lstm

    from ..captures.torch_to_mlx.operations.recurrent import recorded  # noqa: F401  (defines them)

    own = torch.ops.weighbridge
    return {own.lstm.default: _whole(aten_lstm), own.gru.default: _whole(aten_gru)}


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    def translate(x: Any, lengths: Any, *rest: Any) -> Any:  # noqa: ARG001  (of packed sequences)
        return function(x, *rest)

    return translate
