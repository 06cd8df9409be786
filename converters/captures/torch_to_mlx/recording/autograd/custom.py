"""A ``torch.autograd.Function`` in MLX: its own forward, and its own backward as the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ......errors import UnsupportedError
from ...dispatch import Environment, resolve, template
from ...dtypes import to_mlx
from ...operations.gradients import Custom as Differentiated
from ..sources import sources, user_inputs, writes
from .lifting import META, Lifted

Arrays = list[mx.array]
Build = Callable[[GraphModule], Any]


class Custom:
    """A call of a Function: arrays of its arguments -> outputs, and what its backward needs."""

    def __init__(self, node: Node, build: Build) -> None:
        lifted: Lifted = node.meta[META]
        self.arguments = template(node.args[1])
        forward = _runnable(lifted.forward, lifted.name, build)
        backward = _runnable(lifted.backward, lifted.name, build)
        self.function = Differentiated(forward)

        @self.function.vjp
        def gradients(arrays: Arrays, cotangents: Arrays, results: Arrays) -> Arrays:
            kept, given = results[lifted.outputs :], cotangents[: lifted.outputs]
            found = backward([*arrays, *kept, *given])
            return [one.astype(x.dtype) for one, x in zip(found, arrays, strict=True)]

    def __call__(self, values: Environment) -> Arrays:
        """Run forward on VALUES; MLX differentiates it by backward."""
        return cast(Arrays, self.function(resolve(self.arguments, values)))


def _runnable(program: ExportedProgram, name: str, build: Build) -> Callable[[Arrays], Arrays]:
    """Return a function that runs PROGRAM, a method of the Function called NAME."""
    reads, tensors = sources(program)
    trained = any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors.values())
    if reads or trained or writes(program):
        raise UnsupportedError(
            f"torch.autograd.Function {name} uses a parameter or buffer that is no argument of it: "
            "pass it to apply"
        )
    graph, names = build(program.graph_module), user_inputs(program)
    constants = {value: to_mlx(tensor) for value, tensor in tensors.items()}

    def run(arrays: Arrays) -> Arrays:
        results: Arrays = graph.run({**constants, **dict(zip(names, arrays, strict=True))})
        return results

    return run
