"""Which constant of an exported file is which tensor of its source: by values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import Tensor

from ..quantization import Dequantized
from ..values import Array

UNREAD: Final = "unread"  # in a record: tensors of the source that no output depends on
# coremltools lifts weights that float16 would flush to zero to its smallest number.
SMALLEST: Final = float(np.nextafter(np.float16(0), np.float16(1)))


def values_of(tensor: Tensor) -> Array:
    """Return the values of TENSOR, floats as float32."""
    plain = tensor.detach().cpu()
    array: Array = (plain.float() if plain.is_floating_point() else plain).numpy()
    return array


def unread(program: Any) -> list[str]:
    """Return the tensors of the module in PROGRAM, an ``ExportedProgram``, that no output depends on.

    They are what :class:`~weighbridge.converters.captures.positional.Positional` calls ``module.NAME``.
    """
    signature, seen = program.graph_signature, set[Any]()
    left = [it for it in program.graph.nodes if it.op == "output"]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    read = {held[node.name] for node in seen if node.name in held}
    names = (name.partition("module.") for name in program.state_dict if name not in read)
    return sorted(name for _, inside, name in names if inside)


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


def of_codes(
    constants: Mapping[str, Array], tensors: Dequantized
) -> Iterator[tuple[str, Array, list[str]]]:
    """Yield each quantized weight of TENSORS, its dense values, and which CONSTANTS, matrices, are made of it."""
    known: dict[tuple[Any, bytes], list[str]] = {}
    matrices = {name: it for name, it in constants.items() if it.ndim == 2}
    for name, array in matrices.items():
        known.setdefault((array.dtype, digest(array, array.dtype)), []).append(name)
    dtypes = {array.dtype for array in matrices.values()}
    for weight in tensors.schemes:
        dense = tensors.read(weight)
        names = [it for dtype in dtypes for it in known.get((dtype, digest(dense, dtype)), ())]
        yield weight, dense, [it for it in names if matrices[it].shape == dense.shape]


def joined(
    constants: Mapping[str, Array], tensors: Dequantized, weights: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield each of CONSTANTS whose rows are those of whole matrices of WEIGHTS, one after another.

    And of which weights they are, with their number: a weight of three axes, as of experts, is several.
    """
    known: dict[Any, tuple[str, int]] = {}
    dtypes = {array.dtype for array in constants.values()}
    for weight in weights:
        dense = tensors.read(weight)
        for at, matrix in enumerate(dense.reshape(-1, *dense.shape[-2:])):
            for dtype in dtypes:
                known.setdefault((dtype, matrix.shape, digest(matrix, dtype)), (weight, at))
    heights = sorted({shape[0] for _, shape, _ in known if shape[0]})
    for name, array in constants.items():
        if found := _in_turn(array.reshape(-1, array.shape[-1]), known, heights):
            yield name, found


def _in_turn(
    rows: Array, known: Mapping[Any, tuple[str, int]], heights: Sequence[int]
) -> list[tuple[str, int]]:
    """Return what of the KNOWN matrices follow each other in ROWS; empty where anything else does."""
    found, at = list[tuple[str, int]](), 0
    while at < len(rows):
        pieces = (rows[at : at + size] for size in heights)
        keys = ((it.dtype, it.shape, digest(it, it.dtype)) for it in pieces)
        key = next((it for it in keys if it in known), None)
        if key is None:
            return []
        found.append(known[key])
        at += key[1][0]
    return found


def origin_of(tensor: Tensor) -> dict[str, str]:
    """Return what a manifest says of a TENSOR of the source."""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "xxh3": source_hash(tensor)}


def entry(sources: Sequence[tuple[str, bool]], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Describe a constant that equals SOURCES, tensors as they are before swapped ones."""
    ordered = sorted(sources, key=lambda source: source[1])
    key, swapped = ordered[0]
    also = [name for name, _ in ordered if name != key]
    described: dict[str, Any] = {"key": key, **origin_of(state[key])}
    if also:
        described["also"] = sorted(set(also))
    if swapped:
        described["transposed"] = True
    return described
