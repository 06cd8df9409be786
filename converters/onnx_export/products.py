"""Products with quantized weights as onnxruntime's own operation, ``com.microsoft.MatMulNBits``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from onnx import helper, numpy_helper

from ..checkpoints.formats.onnx_packed import DOMAIN, NODE
from ..quantization.constants.onnx import MatMul, packed
from ..values import Array

PLAIN: Final = {
    "transA": 0,
    "transB": 1,
    "alpha": 1.0,
    "beta": 1.0,
}  # of a Gemm that is x @ w.T + b


def products_with(graph: Any, name: str) -> list[Any]:
    """Return the nodes of GRAPH that multiply by the transposed weight NAME; empty where anything else reads it."""
    found = list[Any]()
    for node in (it for it in graph.node if name in it.input):
        if node.op_type == "Transpose":
            turned = node.output[0]
            readers = [it for it in graph.node if turned in it.input]
            ways = [helper.get_attribute_value(it) for it in node.attribute if it.name == "perm"]
            fits = all(it.op_type == "MatMul" and it.input[0] != turned for it in readers)
            fits = fits and ways in ([], [[1, 0]])
            seen = turned in {it.name for it in graph.output}
            found += readers if fits and readers and not seen else [None]
        else:
            found.append(node if _plain(node, name) else None)
    return [] if None in found else found


def _plain(node: Any, name: str) -> bool:
    """Say whether NODE is a ``Gemm`` that multiplies rows by the transposed weight NAME, and adds."""
    given = {it.name: helper.get_attribute_value(it) for it in node.attribute}
    known = {**PLAIN, "transB": 0, **given} == PLAIN
    return (
        node.op_type == "Gemm"
        and known
        and [*node.input].index(name) == 1 == [*node.input].count(name)
    )


def multiply(proto: Any, name: str, made: MatMul) -> bool:
    """Let the products of PROTO with the weight NAME be made with the codes MADE in its place.

    Returns:
        Whether that is so: MADE may not be exact, and NAME may be read by something else.
    """
    graph = proto.graph
    products = [] if made.error else products_with(graph, name)
    if not products:
        return False
    nodes, outputs = list[Any](), {it.output[0] for it in products}
    for node in graph.node:
        if node.output[0] in outputs:
            nodes += _nodes(node, name, made)
        elif not (node.op_type == "Transpose" and name in node.input):
            nodes.append(node)
    kept = [it for it in graph.initializer if it.name != name]
    for place, rows in ((graph.initializer, [*kept, *_constants(name, made)]), (graph.node, nodes)):
        del place[:]
        place.extend(rows)
    if DOMAIN not in {it.domain for it in proto.opset_import}:
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return True


def _constants(name: str, made: MatMul) -> Iterator[Any]:
    """Yield the initializers of the weight NAME, called as onnxruntime's quantizer calls them."""
    rows, groups = made.scales.shape
    zeros = np.pad(made.zeros, ((0, 0), (0, groups % (8 // made.bits))))  # to whole bytes
    arrays: dict[str, Array] = {
        f"Q{made.bits}": packed(made.codes, made.bits).reshape(rows, groups, -1),
        "scales": made.scales.astype(np.float32),
        "zero_points": packed(zeros, made.bits),
    }
    if made.rest.any():
        tail = np.array([groups, made.block_size])
        arrays |= {
            "rest": np.ascontiguousarray(made.rest.T),
            "blocks": tail,
            "last": np.array([-1]),
        }
    for kind, array in arrays.items():
        yield numpy_helper.from_array(array, f"{name}_{kind}")


def _nodes(node: Any, name: str, made: MatMul) -> Iterator[Any]:
    """Yield what stands for NODE: the product, and with what its zeros miss the sums of blocks of the input."""
    rows, columns = made.codes.shape
    given, out = node.input[0], node.output[0]
    added = [it for it in node.input[2:] if it]
    names = [f"{name}_{it}" for it in (f"Q{made.bits}", "scales", "zero_points")]
    sizes = {"K": columns, "N": rows, "bits": made.bits, "block_size": made.block_size}
    terms = [f"{out}/product", *([f"{out}/rest"] if made.rest.any() else []), *added]
    steps: list[tuple[str, Sequence[str], str, dict[str, Any]]] = [
        (NODE, [given, *names], terms[0], {"domain": DOMAIN, **sizes})
    ]
    if made.rest.any():
        steps += [
            ("Shape", [given], f"{out}/lead", {"end": -1}),
            ("Concat", [f"{out}/lead", f"{name}_blocks"], f"{out}/shape", {"axis": 0}),
            ("Reshape", [given, f"{out}/shape"], f"{out}/grouped", {}),
            ("ReduceSum", [f"{out}/grouped", f"{name}_last"], f"{out}/sums", {"keepdims": 0}),
            ("MatMul", [f"{out}/sums", f"{name}_rest"], f"{out}/rest", {}),
        ]
    sums = [*(f"{out}/sum_{at}" for at in range(len(terms) - 2)), out]
    for before, term, after in zip([terms[0], *sums], terms[1:], sums, strict=False):
        steps.append(("Add", [before, term], after, {}))
    if len(terms) == 1:
        steps[0] = (*steps[0][:2], out, steps[0][3])
    for kind, inputs, output, settings in steps:
        made_node = helper.make_node(kind, inputs, [output], **settings)
        made_node.metadata_props.extend(node.metadata_props)
        yield made_node
