"""What an exported ML program says of its origin.

Which constant is which tensor of the source, and which operation ends which submodule.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import Tensor

from ..values import Array
from .precision import before_rounding

# coremltools lifts weights that float16 would flush to zero to its smallest number.
SMALLEST: Final = float(np.nextafter(np.float16(0), np.float16(1)))
# What coremltools appends to a node's name: for float16, and for 16-bit indices.
SUFFIXES: Final = ("", "_cast_fp16", "_cast_fp16_cast_uint16")
ATEN: Final = torch.ops.aten
# Operations that hand their input on.
TRANSPARENT: Final = frozenset(
    op.default for op in (ATEN.alias, ATEN.clone, ATEN.contiguous, ATEN.detach, ATEN.dropout)
)


def values_of(tensor: Tensor) -> Array:
    """Return the values of TENSOR, floats as float32."""
    plain = tensor.detach().cpu()
    array: Array = (plain.float() if plain.is_floating_point() else plain).numpy()
    return array


def source_hash(tensor: Tensor) -> str:
    """Return the xxh3 of the bytes of TENSOR in its own dtype, as checkpoints do."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"xxh3:{xxhash.xxh3_128_hexdigest(data.data)}"


def digest(array: Array, dtype: Any) -> bytes:
    """Return a digest of the values of ARRAY at DTYPE; all shapes of one order are alike.

    At float16 the numbers that may have been lifted to the smallest count as zero.
    """
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if cast.dtype == np.float16:
        cast = np.where(np.abs(cast) <= SMALLEST, np.float16(0), cast)
    return bytes(xxhash.xxh3_128_digest(np.ascontiguousarray(cast).data))


def layouts(array: Array) -> Iterator[tuple[bool, Array]]:
    """Yield ARRAY as it is and, if it has two axes or more, with the last two swapped."""
    yield False, array
    if array.ndim >= 2:
        yield True, np.swapaxes(array, -1, -2)


def match_weights(
    constants: Mapping[str, Array], state: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Say by values which constant is which tensor of STATE; those without a match are left out.

    Returns:
        constant -> ``key`` (the tensor's name), ``dtype`` and ``xxh3`` of the tensor; ``also``,
        other names with equal values; ``transposed``, if the last two axes are swapped.
    """
    floats = {key: tensor for key, tensor in state.items() if tensor.is_floating_point()}
    known: dict[Any, list[tuple[str, bool]]] = {}
    for dtype in {array.dtype for array in constants.values()}:
        for key, tensor in floats.items():
            for swapped, array in layouts(values_of(tensor)):
                known.setdefault((dtype, digest(array, dtype)), []).append((key, swapped))
    found = {}
    for name, array in constants.items():
        if sources := known.get((array.dtype, digest(array, array.dtype))):
            found[name] = entry(sources, floats)
    return found


def match_scalars(
    constants: Mapping[str, Array], keys: Mapping[str, str], state: Mapping[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """Say which constant without axes is which tensor of one element, by name and by value.

    Args:
        constants: by name.
        keys: placeholder of the exported graph -> name of the tensor.
        state: the tensors.
    """
    found = {}
    for name, array in constants.items():
        tensor = state.get(keys.get(before_rounding(name), ""))
        if tensor is None or tensor.numel() != 1:
            continue
        if digest(values_of(tensor), array.dtype) == digest(array, array.dtype):
            found[name] = entry([(keys[before_rounding(name)], False)], state)
    return found


def entry(sources: Sequence[tuple[str, bool]], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Describe a constant that equals SOURCES, tensors as they are before swapped ones."""
    ordered = sorted(sources, key=lambda source: source[1])
    key, swapped = ordered[0]
    also = [name for name, _ in ordered if name != key]
    tensor = state[key]
    described: dict[str, Any] = {
        "key": key,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "xxh3": source_hash(tensor),
    }
    if also:
        described["also"] = sorted(set(also))
    if swapped:
        described["transposed"] = True
    return described


def paths(node: Any) -> list[str]:
    """Return the submodules that NODE is part of, outermost first, named as in the module."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(path).removeprefix("module").removeprefix(".") for path, _ in stack.values()]
    return [name for name in names if name]


def origin(node: Any) -> Any:
    """Return the node that computes what NODE hands on, or picks as the first of several."""
    while node.op == "call_function" and (
        node.target in TRANSPARENT or (node.target is operator.getitem and node.args[1] == 0)
    ):
        node = node.args[0]
    return node


def endings(graph: Any) -> dict[str, Any]:
    """Return the one node of every submodule whose value is used outside of it."""
    leaving: dict[str, set[Any]] = {}
    for node in graph.graph.nodes:
        inside = paths(node)
        for user in node.users:
            for path in set(inside) - set(paths(user)):
                leaving.setdefault(path, set()).add(origin(node))
    return {path: nodes.pop() for path, nodes in leaving.items() if len(nodes) == 1}


def sites(graph: Any, variables: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, list[str]]:
    """Say which operation of the program ends which submodules, innermost first.

    Args:
        graph: the exported torch graph.
        variables: the program's variables by name, which coremltools names like the nodes.
        outputs: names of the program's outputs, which it renames.
    """
    results = graph.graph.output_node().args[0]
    renamed = {origin(node).name: name for node, name in zip(results, outputs, strict=True)}
    found: dict[str, list[str]] = {}
    for path, node in endings(graph).items():
        candidates = [renamed.get(node.name), *(f"{node.name}{suffix}" for suffix in SUFFIXES)]
        name = next((name for name in candidates if name in variables), None)
        if name:
            found.setdefault(name, []).append(path)
    return {name: sorted(ends, key=depth_first) for name, ends in found.items()}


def depth_first(path: str) -> tuple[int, str]:
    """Return a key that sorts submodules before the modules around them."""
    return (-path.count("."), path)
