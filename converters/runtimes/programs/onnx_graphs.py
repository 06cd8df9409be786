"""ONNX graphs looked into and changed in memory: what leaves a submodule, and a graph in float32."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ...checkpoints.formats.onnx_model import KINDS
from ...checkpoints.formats.onnx_rounded import graphs
from ...values import Array

SCOPES: Final = (
    "pkg.torch.onnx.name_scopes"  # of a node: the submodules around it, then its own name
)
GIVEN: Final = "/given"  # ends the name of an input that stands in for a value
WIDE: Final = "/float32"  # ends the name of an initializer's float32 copy


def watch(proto: Any, sites: Collection[str], given: Mapping[str, int]) -> None:
    """Let PROTO give the values SITES as well, and take those GIVEN, by type, as inputs for what follows them."""
    import onnx

    known = {value.name for value in proto.graph.output}
    for name in dict.fromkeys(sites):
        if name not in known:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    for name, kind in given.items():
        _replace(proto.graph, name, kind)


def endings(graph: Any) -> dict[str, str]:
    """Return the one value of every submodule that is used outside of it.

    Args:
        graph: of an ONNX model whose nodes say which submodules they come from.
    """
    inside = {name: scopes_of(node) for node in graph.node for name in node.output}
    users = [(name, scopes_of(node)) for node in graph.node for name in node.input]
    users += [(value.name, frozenset()) for value in graph.output]
    leaving: dict[str, dict[str, None]] = {}
    for name, there in users:
        for scope in inside.get(name, frozenset()) - there:
            leaving.setdefault(scope, {})[name] = None
    return {scope: next(iter(them)) for scope, them in leaving.items() if len(them) == 1}


def scopes_of(node: Any) -> frozenset[str]:
    """Return the submodules that NODE comes from."""
    return frozenset(path_of(node))


def path_of(node: Any) -> tuple[str, ...]:
    """Return the submodules that NODE comes from, the innermost last.

    PyTorch's older exporter has them in the name of the node alone, ``/encoder/layer.0/query/MatMul``.
    """
    text = next((it.value for it in node.metadata_props if it.key == SCOPES), "")
    if not text:
        inside = node.name.split("/")[1:-1] if node.name.startswith("/") else []
        return tuple(accumulate(inside, "{}.{}".format))
    try:
        names = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return ()
    return tuple(str(name) for name in names[:-1] if name)


def _replace(graph: Any, name: str, kind: int) -> None:
    """Let everything that reads the value NAME read an input in its place."""
    from onnx import helper

    for node in graph.node:
        for at, read in enumerate(node.input):
            if read == name:
                node.input[at] = f"{name}{GIVEN}"
    graph.input.append(helper.make_tensor_value_info(f"{name}{GIVEN}", kind, None))


def widen(
    proto: Any,
    made: Mapping[str, Collection[str]],
    exact: Mapping[str, Array] = MappingProxyType({}),
) -> None:
    """Let PROTO compute in float32 whatever it computes in float16, in place; its weights stay as they are.

    Args:
        proto: the model.
        made: weights that it makes of codes, each with the values in between, itself among them.
        exact: initializers and constants of its outer graph that have these values instead.
    """
    _exchange(proto.graph, exact)
    inside = {name for values in made.values() for name in values}
    for graph in (proto.graph, *proto.functions):
        _widen_nodes([node for node in graph.node if not inside.intersection(node.output)])
    for graph in graphs(proto.graph):
        own = made if graph is proto.graph else ()
        _widen_weights(graph, own, inside)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _widen_type(value.type)


def _exchange(graph: Any, exact: Mapping[str, Array]) -> None:
    """Let GRAPH hold the numbers EXACT in place of those of the same names."""
    from onnx import numpy_helper

    constants = {
        n.output[0]: a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute
    }
    constants |= {tensor.name: tensor for tensor in graph.initializer}
    for name in exact.keys() & constants.keys():
        constants[name].CopyFrom(numpy_helper.from_array(exact[name], name))


def _widen_nodes(nodes: Any) -> None:
    """Widen the constants and types that the attributes of NODES and of the graphs in them hold."""
    from onnx import TensorProto, numpy_helper

    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in KINDS and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
            if attribute.t.data_type == TensorProto.FLOAT16:
                wide = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _widen_nodes(inner.node)


def _widen_weights(graph: Any, made: Collection[str], inside: Collection[str]) -> None:
    """Let the nodes of GRAPH but those INSIDE weights read float32 copies of the MADE ones and of initializers."""
    from onnx import TensorProto, helper

    narrow = [it.name for it in graph.initializer if it.data_type == TensorProto.FLOAT16]
    wide = {name: f"{name}{WIDE}" for name in (*narrow, *made)}
    making = [node for node in graph.node if {*node.output} & {*inside}]
    rest = [node for node in graph.node if not {*node.output} & {*inside}]
    for node in [*rest, *(it for inner in [*graphs(graph)][1:] for it in inner.node)]:
        node.input[:] = [wide.get(name, name) for name in node.input]
    casts = [helper.make_node("Cast", [n], [to], to=TensorProto.FLOAT) for n, to in wide.items()]
    nodes = [*making, *casts, *rest]
    del graph.node[:]
    graph.node.extend(nodes)


def _widen_type(kind: Any) -> None:
    from onnx import TensorProto

    if kind.tensor_type.elem_type == TensorProto.FLOAT16:
        kind.tensor_type.elem_type = TensorProto.FLOAT
