"""Record what a ``sanitize`` does to tensors, as a graph of MLX's primitives; nothing is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from .....errors import UnsupportedError, WeighbridgeError
from ....checkpoints.base import Header
from ....common.dtypes import NUMPY
from ...execution.exchange import code, mlx_dtype, to_numpy
from .opaque import Node, folded, marked

Sanitize: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Trace:
    """What a function does to named tensors.

    Attributes:
        headers: the tensors that it was given.
        inputs: the id of each of them in the graph.
        outputs: the id of each tensor that it returned; that of an input where it is the same one.
        layout: the headers of what it returned.
        nodes: the primitives in between, in an order in which they can run.
        constants: arrays that it brought along, by id.
    """

    headers: Mapping[str, Header]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    layout: dict[str, Header]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Any]

    @cached_property
    def makers(self) -> dict[str, Node]:
        """The node that makes each array of the graph, by id."""
        return {output[0]: node for node in self.nodes for output in node["outputs"]}

    @cached_property
    def places(self) -> dict[str, int]:
        """The place among the nodes of the one that makes each array, by id."""
        return {o[0]: at for at, node in enumerate(self.nodes) for o in node["outputs"]}

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each input, by id."""
        return {array: name for name, array in self.inputs.items()}


def record(sanitize: Sanitize, headers: Mapping[str, Header]) -> Trace:
    """Return the trace of SANITIZE on tensors with these HEADERS.

    The function gets a dict of its own. It may change itself, so give it a fresh model each time.

    Raises:
        UnsupportedError: it looks at values, calls a primitive that MLX cannot export, or fails.
    """
    import mlx.core as mx

    weights = {n: mx.zeros(h.shape, mlx_dtype(NUMPY[h.dtype].name)) for n, h in headers.items()}
    returned: list[str] = []
    records: list[dict[str, Any]] = []

    def function(**arrays: Any) -> list[Any]:
        made = {name: arrays[name] for name in weights}  # MLX sorts the names
        result = {k: v for k, v in sanitize(made).items() if isinstance(v, mx.array)}
        returned[:] = list(result)
        return list(result.values())

    with marked() as calls:
        try:
            # One dict: as keywords, more than 1024 names would be too many.
            mx.export_function(records.append, function, weights)
        except (WeighbridgeError, MemoryError):
            raise
        except Exception as error:
            raise UnsupportedError(_reason(error)) from error
    return _trace(headers, returned, records, calls)


def _reason(error: Exception) -> str:
    """Say in one line why a trace failed."""
    text = " ".join(f"{error}".split())
    if "[eval]" in text:
        return "reads values of tensors, so its map depends on the numbers and cannot be learned"
    if "Unable to get state for primitive" in text:
        primitive = text.rpartition("primitive ")[2].rstrip(".")
        return f"calls the primitive {primitive}, which MLX cannot export"
    return f"fails on these tensors ({type(error).__name__}: {text[:160]})"


def _trace(
    headers: Mapping[str, Header], returned: list[str], records: list[Any], calls: list[Any]
) -> Trace:
    found = {record["type"]: record for record in records if record["type"] != "primitive"}
    nodes = [record for record in records if record["type"] == "primitive"]
    outputs = list(zip(returned, found["outputs"]["outputs"], strict=True))
    return Trace(
        headers=headers,
        inputs=dict(found["keyword_inputs"]["keywords"]) if headers else {},
        outputs={name: output[0] for name, output in outputs},
        layout={name: Header(code(output[2]), tuple(output[1])) for name, output in outputs},
        nodes=tuple(folded(nodes, calls)),
        constants={name: to_numpy(array) for name, array in found["constants"]["constants"]},
    )
