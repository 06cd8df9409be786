"""What an exported ML program says of its origin.

Which constant is which tensor of the source, and which operation ends which submodule.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ..captures.constants import digest, entry, values_of
from ..values import Array
from .naming import before_rounding

# What coremltools appends to a node's name: for float16, and for 16-bit indices.
SUFFIXES: Final = ("", "_cast_fp16", "_cast_fp16_cast_uint16")
ATEN: Final = torch.ops.aten
# Operations that hand their input on.
TRANSPARENT: Final = frozenset(
    op.default for op in (ATEN.alias, ATEN.clone, ATEN.contiguous, ATEN.detach, ATEN.dropout)
)


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
    own = set(graph.graph_signature.user_outputs)  # others are what states become
    results = [node for node in graph.graph.output_node().args[0] if node.name in own]
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
