"""``forward`` and ``backward`` of a ``torch.autograd.Function``, recorded as two programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from ......errors import UnsupportedError
from ....tracing import unused_left_out
from ...operations.decompositions import decomposed
from ..failures import refuse
from .functions import OPERATION, Use

META = "weighbridge_lifted"  # where a node keeps its programs
Tensors = list[torch.Tensor]


class Lifted(NamedTuple):
    """The two methods of a Function as programs.

    Attributes:
        forward: tensors of the arguments -> outputs, and what is kept for ``backward``.
        backward: these tensors, what is kept, and cotangents of the outputs -> gradients.
        name: of the class.
        outputs: how many outputs there are.
    """

    forward: ExportedProgram
    backward: ExportedProgram
    name: str
    outputs: int


class _Method(torch.nn.Module):
    """A function of tensors as a module, which is what ``torch.export`` takes."""

    def __init__(self, function: Callable[[Tensors], Tensors]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        """Call the function."""
        return self.function(list(tensors))


def lift(program: ExportedProgram, uses: Mapping[int, Use]) -> None:
    """Record both methods of every Function that PROGRAM calls, and leave them with its nodes.

    Raises:
        UnsupportedError: a method cannot be recorded; its class and the line that calls it are named.
    """
    made: dict[Any, Lifted] = {}
    for node in _calls(program.graph_module):
        use = uses[cast(int, node.args[0])]
        key = (use.function, repr(use.arguments), repr(use.spec), *_described(node))
        if key not in made:
            made[key] = _lifted(use, node)
        node.meta[META] = made[key]


def _calls(module: GraphModule) -> Iterator[Node]:
    graphs = [part for part in module.modules() if isinstance(part, GraphModule)]
    for graph in graphs:
        yield from (node for node in graph.graph.nodes if str(node.target) == OPERATION)


def _described(node: Node) -> Iterator[tuple[str, torch.dtype]]:
    """Yield sizes and dtype of each tensor that NODE takes."""
    for argument in node.args[1]:  # type: ignore[union-attr]
        value = argument.meta["val"]  # type: ignore[union-attr]
        yield str(tuple(value.shape)), value.dtype


def _lifted(use: Use, node: Node) -> Lifted:
    tensors = [argument.meta["val"] for argument in node.args[1]]  # type: ignore[union-attr]
    results = list(node.meta["val"])
    count = len(use.filled)
    kept = len(results) - count

    def forward(given: Tensors) -> Tensors:
        context, outputs = use.run(given)
        return [*outputs, *context.kept()]

    def backward(given: Tensors) -> Tensors:
        own, rest = given[: len(tensors)], given[len(tensors) :]
        context, _ = use.run(own)  # for its attributes; what it computes is not used
        context.replace(rest[:kept])
        return _filled(use.backward(context, rest[kept:]), own)

    return Lifted(
        _recorded(forward, tensors, use, "forward"),
        _recorded(backward, [*tensors, *results[count:], *results[:count]], use, "backward"),
        use.name,
        count,
    )


def _filled(gradients: list[Any], tensors: Tensors) -> Tensors:
    """Return GRADIENTS with zeros for those that are ``None``."""
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for gradient, tensor in zip(gradients, tensors, strict=True)
    ]


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def _recorded(
    function: Callable[[Tensors], Tensors], like: list[Any], use: Use, method: str
) -> ExportedProgram:
    """Record FUNCTION, METHOD of a Function, on tensors like those given; sizes that vary do so still."""
    examples = tuple(
        torch.zeros([_hint(size) for size in value.shape], dtype=value.dtype) for value in like
    )
    varying = tuple(
        {axis: Dim.AUTO for axis, size in enumerate(value.shape) if not isinstance(size, int)}
        for value in like
    )
    what = f"{method} of torch.autograd.Function {use.name} ({use.line})"
    try:
        with warnings.catch_warnings(), unused_left_out(varying=any(varying)):
            warnings.simplefilter("ignore")
            exported = torch.export.export(
                _Method(function), examples, dynamic_shapes=(varying,), strict=False
            )
            program = decomposed(exported.run_decompositions({}))
    except Exception as error:
        refuse(error, what)
    _check_sizes(program, like, what)
    return program


def _check_sizes(program: ExportedProgram, like: list[Any], what: str) -> None:
    """Refuse a program that fixes a size which varies."""
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"][-len(like) :]
    for node, value in zip(inputs, like, strict=True) if like else ():
        for size, wanted in zip(node.meta["val"].shape, value.shape, strict=True):
            if isinstance(size, int) and not isinstance(wanted, int):
                raise UnsupportedError(f"{what} fixes a size at {size} that may vary")
