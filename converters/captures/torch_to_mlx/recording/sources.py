"""What a recorded program starts from and what it leaves: parameters, constants, updates, its return value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from .....errors import UnsupportedError


def sources(program: ExportedProgram) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Return graph value -> name of its parameter or buffer, and graph value -> constant.

    Raises:
        UnsupportedError: the program takes something that is neither, nor an input.
    """
    reads, constants = {}, {}
    for spec in program.graph_signature.input_specs:
        kind = spec.kind.name
        if kind in ("PARAMETER", "BUFFER") and spec.target in program.state_dict:
            reads[spec.arg.name] = spec.target
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            constants[spec.arg.name] = program.constants[spec.target]
        elif kind != "USER_INPUT":
            raise UnsupportedError(f"the module takes a {kind.lower()} called {spec.target!r}")
    return reads, constants


def writes(program: ExportedProgram) -> dict[int, str]:
    """Return position among the graph's outputs -> buffer that it updates; these come first.

    Raises:
        UnsupportedError: something else is updated.
    """
    found = {}
    for position, spec in enumerate(program.graph_signature.output_specs):
        kind = spec.kind.name
        if kind == "BUFFER_MUTATION" and spec.target in program.state_dict:
            found[position] = spec.target
        elif kind not in ("USER_OUTPUT", "LOSS_OUTPUT"):
            cure = (
                "" if kind != "USER_INPUT_MUTATION" else ": make it a buffer, or change a .clone()"
            )
            raise UnsupportedError(
                f"the module updates {spec.target!r} in place ({kind.lower()}){cure}"
            )
    return found


def drop_unchanged(program: ExportedProgram) -> None:
    """Drop updates of buffers by what they are, such as ``self.table = self.table.to(device)``."""
    signature, output = program.graph_signature, program.graph.output_node()
    own = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target}
    kept = [
        (spec, value)
        for spec, value in zip(signature.output_specs, output.args[0], strict=True)
        if spec.kind.name != "BUFFER_MUTATION" or own.get(spec.target) != spec.arg.name
    ]
    signature.output_specs[:] = [spec for spec, _ in kept]
    output.args = (tuple(value for _, value in kept),)
    program.graph_module.recompile()


def structure(program: ExportedProgram, offset: int) -> Any:
    """Return the module's return value with positions among the graph's outputs as leaves."""
    spec = program.call_spec.out_spec
    return _plain(pytree.tree_unflatten(range(offset, offset + spec.num_leaves), spec))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(below) for key, below in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value


def user_inputs(program: ExportedProgram) -> list[str]:
    """Return the graph's names of the inputs, in order."""
    specs = program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]


def input_names(program: ExportedProgram) -> list[str]:
    """Return the path of every leaf of the user's inputs; positional ones have the graph's names."""
    arguments, keywords = program.call_spec.in_spec.children()
    names = [path for key, spec in _children(keywords) for path in _paths(spec, key)]
    return [*user_inputs(program)[: arguments.num_leaves], *names]


def _children(spec: TreeSpec) -> list[tuple[str, TreeSpec]]:
    keys = spec.context if isinstance(spec.context, list) else range(len(spec.children()))
    return [(str(key), child) for key, child in zip(keys, spec.children(), strict=True)]


def _paths(spec: TreeSpec, path: str) -> list[str]:
    if spec.is_leaf():
        return [path]
    return [name for key, child in _children(spec) for name in _paths(child, f"{path}.{key}")]
