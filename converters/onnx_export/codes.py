"""Codes of a quantized source kept in an ONNX graph, which makes the weights of them before it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ...errors import BadInputError, UnsupportedError
from ..captures.constants import of_codes
from ..common.steps import step
from ..quantization import Blocks, Dequantized, Scheme
from ..quantization.constants.onnx import Linear, linear, packed
from ..values import Array

OPSET: Final = 21  # the first whose DequantizeLinear knows blocks and 4-bit codes
TOO_FINE: Final = "its scales have more digits than float32 keeps of their products"
CHANGED: Final = "no constant has its values (an adapter may have changed it)"
HELD: Final = {4: TensorProto.UINT4, 8: TensorProto.UINT8}


@dataclass
class Kept:
    """What became of the quantized weights of a source.

    Attributes:
        codes: initializer -> the scheme of its codes and the dtype of its scales in the source.
        dense: weights that stay dense, and why.
    """

    codes: dict[str, dict[str, Any]] = field(default_factory=dict)
    dense: dict[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return how far each weight on codes moves, in steps, and the dense ones: for the record of a result."""
        return {"codes": dict.fromkeys(self.codes, 0.0), "dense": self.dense}


def opset_for(codes: Dequantized | None, asked: int | None, usual: int) -> int:
    """Return the version of the operators: ASKED, or what CODES need, or the USUAL one.

    Raises:
        BadInputError: it is too old for codes.
    """
    if codes is None:
        return asked or usual
    if asked and asked < OPSET:
        raise BadInputError(
            f"--opset {asked} has no blocks of codes, which are kept from opset {OPSET} on"
        )
    return asked or OPSET


def keep_codes(proto: Any, constants: Mapping[str, Array], tensors: Dequantized) -> Kept:
    """Give PROTO the codes of TENSORS in place of the dense CONSTANTS made of them.

    Each weight is ``DequantizeLinear(codes, scales)`` and an ``Add`` of the biases, by blocks of a row.
    """
    step("keeping the codes of the source")
    found, nodes, added = Kept(), list[Any](), list[Any]()
    for weight, _, names in of_codes(constants, tensors):
        scheme = tensors.schemes[weight]
        try:
            made = linear(Blocks(tensors.parts(weight), scheme))
        except UnsupportedError as error:
            found.dense[weight] = str(error)
            continue
        exact = [name for name in names if computes(made, constants[name])]
        if not exact:
            found.dense[weight] = TOO_FINE if names else CHANGED
        for name in exact:
            found.codes[name] = recorded(scheme, tensors.parts(weight)["scales"].dtype)
            added += parts_of(name, made)
            nodes += nodes_of(name, made, constants[name].dtype)
    _replace(proto.graph, found.codes, added, nodes)
    return found


def computes(made: Linear, dense: Array) -> bool:
    """Say whether a graph in float32 makes DENSE of the constants MADE: the last digit of float32 aside.

    Scales of float32 have more digits than a product keeps, by which a weight in float16 may be rounded otherwise.
    """
    if dense.dtype == np.float32:
        return True
    grouped = made.x.reshape(*made.scales.shape, -1).astype(np.float32)
    values = grouped * made.scales.astype(np.float32)[..., None]
    values += made.biases.astype(np.float32)[..., None]
    return np.array_equal(values.reshape(dense.shape).astype(dense.dtype), dense)


def recorded(scheme: Scheme, scales: np.dtype[Any]) -> dict[str, Any]:
    """Return what the file's record says of codes by SCHEME whose SCALES are of this dtype."""
    return {**scheme.record, "scales": scales.name}


def part(name: str, kind: str) -> str:
    """Return what the initializer with a KIND of part of weight NAME is called.

    >>> part("up.weight", "codes")
    'up.weight/codes'
    """
    return f"{name}/{kind}"


def parts_of(name: str, made: Linear) -> Iterator[Any]:
    """Yield the initializers of the weight NAME."""
    bits = max(4, made.bits)
    raw = packed(made.x, bits).tobytes()
    rows, columns = made.x.shape
    groups = columns // made.block_size
    yield helper.make_tensor(part(name, "codes"), HELD[bits], made.x.shape, raw, raw=True)
    scales, biases = made.scales.astype(np.float32), made.biases.astype(np.float32)[..., None]
    sizes = np.array([rows, groups, made.block_size]), np.array([rows, columns])
    kinds = {"scales": scales, "biases": biases, "blocks": sizes[0], "shape": sizes[1]}
    for kind, array in kinds.items():
        yield numpy_helper.from_array(array, part(name, kind))


def nodes_of(name: str, made: Linear, dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yield the nodes that make the weight NAME, in DTYPE."""
    codes, scales, biases, blocks, shape = (
        part(name, kind) for kind in ("codes", "scales", "biases", "blocks", "shape")
    )
    scaled, grouped, shifted = (part(name, kind) for kind in ("scaled", "grouped", "shifted"))
    wide = name if dtype == np.float32 else part(name, "wide")
    yield helper.make_node(
        "DequantizeLinear", [codes, scales], [scaled], axis=1, block_size=made.block_size
    )
    yield helper.make_node("Reshape", [scaled, blocks], [grouped])
    yield helper.make_node("Add", [grouped, biases], [shifted])
    yield helper.make_node("Reshape", [shifted, shape], [wide])
    if wide != name:
        yield helper.make_node("Cast", [wide], [name], to=helper.np_dtype_to_tensor_dtype(dtype))


def _replace(graph: Any, gone: Mapping[str, Any], added: list[Any], nodes: list[Any]) -> None:
    """Let NODES make of the initializers ADDED those of GRAPH that are GONE."""
    kept = [it for it in graph.initializer if it.name not in gone]
    every = [*nodes, *graph.node]
    for place, rows in ((graph.initializer, [*kept, *added]), (graph.node, every)):
        del place[:]
        place.extend(rows)
    shown = [it for it in graph.value_info if it.name not in gone]
    del graph.value_info[:]
    graph.value_info.extend(shown)
