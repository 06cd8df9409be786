"""Recurrent layers of any length as ONNX's own operations, by torch's translations of its own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from ...errors import UnsupportedError

FACTORS: Final = ("activation_alpha", "activation_beta")


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
    written = {own.lstm.default: _whole(aten_lstm), own.gru.default: _whole(aten_gru)}
    return {**written, own.pack.default: _packed, own.pad.default: _packed}


def exact_tanh(graph: Any) -> None:
    """Let the GRUs of GRAPH compute tanh as ``ScaledTanh`` with factors of 1, which is the same function.

    What onnxruntime 1.32.0 calls ``Tanh`` in a GRU on a CPU is 1 - 4.8e-7 where tanh is 1.
    """
    from onnx import helper

    for node in (it for it in graph.node if it.op_type == "GRU"):
        given = {it.name: helper.get_attribute_value(it) for it in node.attribute}
        ways = 2 if given.get("direction") == b"bidirectional" else 1
        own: dict[str, list[Any]] = {
            "activations": ["Sigmoid", "ScaledTanh"],
            **{key: [1.0] for key in FACTORS},
        }
        node.attribute.extend(helper.make_attribute(n, it * ways) for n, it in own.items())


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    def translate(x: Any, lengths: Any, *rest: Any) -> Any:  # noqa: ARG001  (of packed sequences)
        return function(x, *rest)

    return translate


def _packed(*_: Any) -> Any:
    raise UnsupportedError(
        "packed sequences have no form in it; export a module that takes its texts or series padded"
    )
