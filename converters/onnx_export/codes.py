"""Codes of a quantized source kept in an ONNX graph, which makes the weights of them before it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ...errors import BadInputError, UnsupportedError
from ..captures.constants import joined, of_codes
from ..common.steps import step
from ..quantization import Blocks, Dequantized, Scheme
from ..quantization.constants.onnx import Linear, linear, matmul, packed
from ..values import Array
from .products import multiply

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


def keep_codes(
    proto: Any, constants: Mapping[str, Array], tensors: Dequantized, *, products: bool = False
) -> Kept:
    """Give PROTO the codes of TENSORS in place of the dense CONSTANTS made of them.

    Each weight is ``DequantizeLinear(codes, scales)`` and an ``Add`` of the biases, by blocks of a row; with
    PRODUCTS one that nothing does but multiply by it is in ``MatMulNBits``.
    """
    step("keeping the codes of the source")
    found, nodes, added = Kept(), list[Any](), list[Any]()
    found.dense = dict.fromkeys(tensors.schemes, CHANGED)
    for name, weights, blocks in on_codes(constants, tensors):
        try:
            made = linear(blocks)
        except UnsupportedError as error:
            found.dense |= dict.fromkeys(weights, str(error))
            continue
        if not computes(made, constants[name]):
            found.dense |= {it: TOO_FINE for it in weights if it in found.dense}
            continue
        found.dense = {it: why for it, why in found.dense.items() if it not in weights}
        found.codes[name] = recorded(blocks.scheme, blocks.parts["scales"].dtype)
        one = constants[name].shape == made.x.shape  # and no stack, whose products are apart
        if products and one and multiply(proto, name, matmul(blocks)):
            continue
        added += parts_of(name, made, constants[name].shape)
        nodes += nodes_of(name, made, constants[name].dtype)
    _replace(proto.graph, found.codes, added, nodes)
    return found


def on_codes(
    constants: Mapping[str, Array], tensors: Dequantized
) -> Iterator[tuple[str, list[str], Blocks]]:
    """Yield each of CONSTANTS that is made of quantized weights of TENSORS, these, and its rows on codes."""
    found = set[str]()
    for weight, _, names in of_codes(constants, tensors):
        found |= {weight, *names} if names else set()
        blocks = Blocks(tensors.parts(weight), tensors.schemes[weight])
        yield from ((name, [weight], blocks) for name in names)
    rest = {name: it for name, it in constants.items() if it.ndim > 1 and name not in found}
    left = [it for it in tensors.schemes if it not in found]
    for name, matrices in joined(rest, tensors, left):
        weights = sorted({weight for weight, _ in matrices})
        kinds = {(tensors.schemes[it], tensors.parts(it)["scales"].dtype) for it in weights}
        if len(kinds) == 1 and tensors.schemes[weights[0]].affine:
            yield name, weights, _joined(matrices, tensors)


def _joined(matrices: Sequence[tuple[str, int]], tensors: Dequantized) -> Blocks:
    """Return the codes of MATRICES of TENSORS, which have one scheme, as rows one after another."""
    held = {weight: tensors.parts(weight) for weight, _ in matrices}
    parts = {
        part: np.concatenate([_matrix(held[weight][part], at) for weight, at in matrices])
        for part in held[matrices[0][0]]
    }
    return Blocks(parts, tensors.schemes[matrices[0][0]])


def _matrix(array: Array, at: int) -> Array:
    """Return matrix number AT of ARRAY, of two axes or more."""
    found: Array = array.reshape(-1, *array.shape[-2:])[at]
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


def parts_of(name: str, made: Linear, shape: Sequence[int]) -> Iterator[Any]:
    """Yield the initializers of the weight NAME of SHAPE."""
    bits = max(4, made.bits)
    raw = packed(made.x, bits).tobytes()
    rows, columns = made.x.shape
    groups = columns // made.block_size
    yield helper.make_tensor(part(name, "codes"), HELD[bits], made.x.shape, raw, raw=True)
    scales, biases = made.scales.astype(np.float32), made.biases.astype(np.float32)[..., None]
    sizes = np.array([rows, groups, made.block_size]), np.array(shape)
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
