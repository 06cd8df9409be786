"""Every step of a graph compared with what torch recorded of it: shapes and dtypes, nothing computed.

MLX infers shapes without computing, so the graph is run on zeros of the example's sizes and dropped. A
handler that has to look at values makes MLX compute what these depend on, from the zeros.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx
import torch
from torch.fx import GraphModule

from .....errors import UnsupportedError
from ....common.users_code import described
from ..dtypes import mlx_dtype
from ..graph import Graph, Step


def verify(graph: Graph, module: GraphModule, known: Mapping[str, mx.array]) -> None:
    """Run GRAPH, made from MODULE, without computing, and compare each step with torch's record.

    Args:
        graph: the steps.
        module: the recorded graph that they were made from.
        known: graph value -> array, for constants; inputs, parameters and buffers are zeros.

    Raises:
        UnsupportedError: a step does not run, or gives another shape or dtype; it is named.
    """
    recorded = {node.name: node.meta.get("val") for node in module.graph.nodes}
    values: dict[str, Any] = {
        name: known[name] if name in known else _zeros(recorded[name]) for name in graph.inputs
    }
    with _same_random_numbers():
        for step in graph.steps:
            values[step.name] = _value(step, values)
            problem = _problem(values[step.name], recorded.get(step.name))
            if problem:
                raise UnsupportedError(f"{step.label} gives {problem}: its handler is wrong")
            for name in step.frees:
                values.pop(name, None)


def _value(step: Step, values: Mapping[str, Any]) -> Any:
    try:
        return step.run(values)
    except Exception as error:
        raise UnsupportedError(
            f"{step.label} does not run in MLX as it is used there: {described(error)}"
        ) from error


def _known(size: int | torch.SymInt) -> int | None:
    """Return SIZE in the example, ``None`` where it depends on values."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def _shape(value: torch.Tensor) -> list[int | None]:
    return [_known(size) for size in value.shape]


def _zeros(value: Any) -> Any:
    """Return zeros like a recorded input; whatever is no tensor is constant in the graph."""
    if isinstance(value, torch.Tensor):
        return mx.zeros([size or 0 for size in _shape(value)], mlx_dtype(value.dtype))
    return _known(value) if isinstance(value, torch.SymInt) else value


def _problem(value: Any, recorded: Any) -> str | None:
    """Return how VALUE differs from what torch RECORDED; of several results those used are steps."""
    if isinstance(recorded, torch.SymInt):
        return (
            None if _known(recorded) in (None, value) else f"{value}, in torch {recorded.node.hint}"
        )
    if not isinstance(recorded, torch.Tensor) or value is None:
        return None
    if not isinstance(value, mx.array):
        return f"a {type(value).__name__} where torch has a tensor"
    wanted, dtype = _shape(recorded), mlx_dtype(recorded.dtype)
    found = [
        None if size is None else given for size, given in zip(wanted, value.shape, strict=False)
    ]
    if found != wanted or value.ndim != len(wanted) or value.dtype != dtype:
        return f"{value.dtype} {list(value.shape)}, in torch {dtype} {wanted}"
    return None


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave MLX's random numbers as they were before the block."""
    state: Any = mx.random.state
    high, low = state[0].tolist()  # it cannot be set; a seed is its two halves
    try:
        yield
    finally:
        mx.random.seed(high << 32 | low)
