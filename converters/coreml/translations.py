"""Translations of our own into Core ML: recurrent layers of any length, normed weights, keys and values.

torch.export writes a layer out step by step, which fixes its length; ``kept_whole`` makes each one operation of
the graph, which coremltools' own translations of traced layers take. Its LSTM has the gates in the order input,
forget, output, cell, PyTorch's has them in the order input, forget, cell, output; each layer has one bias, the sum
of PyTorch's two. A GRU is a loop of products by gate.

A weight kept as a direction and its norms is multiplied out when it is exported. coremltools does it in float32
and adds up squares one by one: some units of the last digit are lost.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from torch import nn

from ..captures.mlprogram.arithmetic import GATES, weight_norm
from ..captures.mlprogram.toolkit import quiet, types
from ..captures.torch_to_mlx.operations.recurrent.recorded import LAYERS

with quiet():
    from coremltools.converters.mil import Builder as mb  # noqa: N813  (its usual name)
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op

OTHERS: Final = (True, True, False, True)  # axes of keys and values that are written whole
OUTPUTS: Final = {"lstm": 3}  # others have two: all states and the last one
THEIRS: Final = ops._weight_norm


def _translation(name: str) -> Any:
    def translate(context: Any, node: Any) -> None:
        own = copy.copy(node)
        own.inputs = [node.inputs[0], *node.inputs[2:]]  # without the lengths of packed sequences
        own.outputs = [f"{node.name}_{index}" for index in range(OUTPUTS.get(name, 2))]
        getattr(ops, name)(context, own)
        context.add(tuple(context[it] for it in own.outputs), torch_name=node.name)

    translate.__name__ = f"_{name}_of_any_length"  # coremltools registers it under its own name too
    return translate


for _name in LAYERS:
    register_torch_op(torch_alias=[f"weighbridge::{_name}"])(_translation(_name))


def _weight_norm(context: Any, node: Any) -> None:
    """Translate a weight of two constants, multiplied out in float64."""
    given = ops._get_inputs(context, node, expected=(2, 3))
    v, g, *axes = (it.val if hasattr(it, "val") else it for it in given)
    if v is None or g is None or not axes or axes[0] < 0:  # below zero: one norm of all numbers
        THEIRS(context, node)
        return
    exact = weight_norm(v.astype(np.float64), g.astype(np.float64), axes[0])
    context.add(mb.const(val=exact.astype(v.dtype), name=node.name))


register_torch_op(override=True)(_weight_norm)


def translated(layer: nn.RNNBase) -> bool:
    """Say whether coremltools translates LAYER: no projections, and plain ones in one direction only."""
    return not layer.proj_size and not (isinstance(layer, nn.RNN) and layer.bidirectional)


def any_length(module: nn.Module) -> bool:
    """Say whether MODULE has recurrent layers, and coremltools translates them all."""
    layers = [it for it in module.modules() if isinstance(it, nn.RNNBase)]
    return bool(layers) and all(map(translated, layers))


def recurrent_parts(module: nn.Module) -> Iterator[Any]:
    """Yield what constants may be made of the recurrent layers in MODULE, as arithmetic on its tensors.

    >>> next(recurrent_parts(nn.Sequential(nn.LSTM(3, 4))))
    ['order', {'key': '0.weight_ih_l0'}, 0, 1, 3, 2]
    """
    for path, layer in module.named_modules():
        for names in layer._all_weights if isinstance(layer, nn.RNNBase) else ():
            keys = [{"key": f"{path}.{name}" if path else name} for name in names]
            if isinstance(layer, nn.GRU):
                yield from (rows for key in keys for rows in by_gate(key, layer.hidden_size))
            else:
                order = GATES["lstm" if isinstance(layer, nn.LSTM) else "rnn"]
                parts = [*keys[:2], *([["add", *keys[2:4]]] if layer.bias else [])]
                yield from (["order", part, *order] if order else part for part in parts)


def by_gate(key: Any, size: int) -> Iterator[list[Any]]:
    """Yield the rows of each gate of a GRU in the tensor KEY, SIZE of them."""
    yield from (["rows", key, float(start), float(start + size)] for start in (0, size, 2 * size))


@register_torch_op(torch_alias=["weighbridge::write_tokens"])  # type: ignore[untyped-decorator]
def _write_tokens(context: Any, node: Any) -> None:
    kept, new, position = ops._get_inputs(context, node, expected=3)
    count = mb.slice_by_index(x=mb.shape(x=new), begin=[2], end=[3])
    end = mb.add(x=position, y=count)
    begin, end = (mb.concat(values=[[0, 0], at, [0]], axis=0) for at in (position, end))
    masks = {"begin_mask": OTHERS, "end_mask": OTHERS}
    context.add(mb.slice_update(x=kept, update=new, begin=begin, end=end, **masks, name=node.name))


@register_torch_op(torch_alias=["prod.dim_int"])  # type: ignore[untyped-decorator]
def prod(context: Any, node: Any) -> None:
    """Translate a product of all elements, or along an axis."""
    x, *given = ops._get_inputs(context, node, expected=(1, 2, 3))
    axes = [int(given[0].val)] if given else None  # of all without
    keep = len(given) > 1 and bool(given[1].val)
    context.add(mb.reduce_prod(x=x, axes=axes, keep_dims=keep, name=node.name))


def reciprocal(context: Any, node: Any) -> None:
    """Translate 1 / x as a quotient; coremltools' own adds 1e-4 to x first."""
    (x,) = ops._get_inputs(context, node, expected=1)
    x = x if types.is_float(x.dtype) else mb.cast(x=x, dtype="fp32")
    context.add(mb.real_div(x=np.float32(1), y=x, name=node.name))


register_torch_op(override=True)(reciprocal)
