"""An ONNX graph in float32 with the range of float16: what leaves it is an infinity, as in float16 itself.

onnxruntime computes most of a float16 graph in float32 on a CPU, where nothing overflows; on other devices
it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ...values import Array
from .onnx_graphs import scopes_of

BEYOND: Final = 65520.0  # and more is rounded to infinity
UNLIMITED: Final = "/unlimited"  # ends the name of a value before it is limited
LARGEST: Final = "/largest"  # ends the name of the largest magnitude in it


class Limited(NamedTuple):
    """What a graph gives with the range of float16.

    Attributes:
        outputs: by name.
        largest: magnitude of the numbers beyond that range where they first arise; 0 if there are none.
        place: the value that holds it, with its operation and submodule.
    """

    outputs: Mapping[str, Array]
    largest: float
    place: str


def narrow_values(
    proto: Any, left_out: Collection[str], types: Mapping[str, int]
) -> dict[str, str]:
    """Return the values that nodes of PROTO give in float16, by their TYPES, and where; those LEFT_OUT aside."""
    from onnx import TensorProto

    outputs = {name: node for node in proto.graph.node for name in node.output if name}
    narrow = [it for it in outputs if types.get(it) == TensorProto.FLOAT16 and it not in left_out]
    return {name: f"{name} ({_where(outputs[name])})" for name in narrow}


def limit(graph: Any, names: Collection[str]) -> None:
    """Let the values NAMES of GRAPH have the range of float16, and give the largest magnitude in each."""
    from onnx import TensorProto, helper

    nodes = [*_constants(), *(it for node in graph.node for it in (node, *_limiting(node, names)))]
    for node in graph.node:
        node.output[:] = [f"{it}{UNLIMITED}" if it in names else it for it in node.output]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.output.extend(
        helper.make_tensor_value_info(f"{name}{LARGEST}", TensorProto.FLOAT, ()) for name in names
    )


def seen(found: Mapping[str, Array], names: Mapping[str, str]) -> Limited:
    """Return what a graph FOUND whose values NAMES were limited."""
    outputs = {name: it for name, it in found.items() if not name.endswith(LARGEST)}
    peaks = {name: float(found[f"{name}{LARGEST}"]) for name in names}
    made = {name: it for name, it in peaks.items() if BEYOND <= it < np.inf}
    place = max(made, key=made.__getitem__, default="")
    return Limited(outputs, made.get(place, 0.0), names.get(place, ""))


def _constants() -> Iterator[Any]:
    """Yield the nodes of the numbers that limits are made of."""
    from onnx import helper, numpy_helper

    for name, number in (("/beyond", BEYOND), ("/infinity", np.inf)):
        value = numpy_helper.from_array(np.array(number, np.float32))
        yield helper.make_node("Constant", [], [name], value=value)


def _limiting(node: Any, names: Collection[str]) -> Iterator[Any]:
    """Yield the nodes that limit what NODE gives."""
    from onnx import helper

    for name in (it for it in node.output if it in names):
        free, size, fits, beyond = (
            f"{name}{it}" for it in (UNLIMITED, "/size", "/fits", "/infinite")
        )
        yield helper.make_node("Abs", [free], [size])
        yield helper.make_node("Less", [size, "/beyond"], [fits])
        yield helper.make_node("Mul", [free, "/infinity"], [beyond])
        yield helper.make_node("Where", [fits, free, beyond], [name])
        yield helper.make_node("ReduceMax", [size], [f"{name}{LARGEST}"], keepdims=0)


def _where(node: Any) -> str:
    inside = max(scopes_of(node), key=len, default="")
    return f"{node.op_type} in {inside}" if inside else node.op_type
