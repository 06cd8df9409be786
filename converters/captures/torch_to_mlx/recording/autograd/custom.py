"""A ``torch.autograd.Function`` in MLX: its own forward, and its own backward as the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Method:
    """A method of a Function: its graph, which of the graph's values it is given, and constants of it."""

    graph: Any
    names: tuple[str, ...]
    constants: Mapping[str, mx.array]

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return what the method makes of ARRAYS."""
        given = dict(zip(self.names, arrays, strict=True))
        return cast(Arrays, self.graph.run({**self.constants, **given}))


class Custom:
    """A call of a Function: arrays of its arguments -> outputs, and what its backward needs.

    Args:
        arguments: those of the call, as values of the graph.
        outputs: how many results are outputs; the others are kept for its backward.
        forward: arrays of the arguments -> results.
        backward: the arguments, what is kept and the outputs' gradients -> gradients of the arguments.
    """

    def __init__(self, arguments: Any, outputs: int, forward: Method, backward: Method) -> None:
        self.arguments, self.outputs, self.methods = arguments, outputs, (forward, backward)
        self.function = Differentiated(forward)

        @self.function.vjp
        def gradients(arrays: Arrays, cotangents: Arrays, results: Arrays) -> Arrays:
            found = backward([*arrays, *results[outputs:], *cotangents[:outputs]])
            return [one.astype(x.dtype) for one, x in zip(found, arrays, strict=True)]

    def __call__(self, values: Environment) -> Arrays:
        """Run forward on VALUES; MLX differentiates it by backward."""
        return cast(Arrays, self.function(resolve(self.arguments, values)))


def custom(node: Node, build: Build) -> Custom:
    """Return what computes NODE, a use of a Function of which both methods were recorded; BUILD makes their graphs.

    Raises:
        UnsupportedError: it has a parameter or a buffer that is no argument.
    """
    lifted: Lifted = node.meta[META]
    forward, backward = (
        _method(program, lifted.name, build) for program in (lifted.forward, lifted.backward)
    )
    return Custom(template(node.args[1]), lifted.outputs, forward, backward)


def _method(program: ExportedProgram, name: str, build: Build) -> Method:
    """Return PROGRAM, a method of the Function called NAME."""
    reads, tensors = sources(program)
    trained = any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors.values())
    if reads or trained or writes(program):
        raise UnsupportedError(
            f"torch.autograd.Function {name} uses a parameter or buffer that is no argument of it: "
            "pass it to apply"
        )
    constants = {value: to_mlx(tensor) for value, tensor in tensors.items()}
    return Method(build(program.graph_module), tuple(user_inputs(program)), constants)
