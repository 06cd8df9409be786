"""A program that gives inner values as outputs and takes others in their place; in the process of an asset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from coreai._compiler.dialects import coreai
from coreai._compiler.ir import InsertionPoint, RankedTensorType, Type, Value
from coreai.authoring import AIProgram
from coreai.authoring.graph_builder import GraphOp

MAIN: Final = "main"
FLOATS: Final = ("f16", "f32", "bf16", "f64")
END: Final = "coreai.output"
NAME: Final = "value_"  # begins the name of an output that is none of the program's own
GIVEN: Final = "/given"  # ends the name of an input that stands in for a value


def watch(program: AIProgram, places: Sequence[int], given: Collection[int]) -> None:
    """Let the main graph of PROGRAM return values inside of it too, and take some as inputs.

    Args:
        program: changed in place.
        places: numbers of operations in the main graph, whose values are outputs ``NAME`` with the number.
        given: of PLACES those whose value is an input, ``GIVEN`` behind that name, for all that follow.
    """
    graph = program._get_graph(MAIN)
    if graph is None:
        raise ValueError(f"no graph {MAIN}")
    body = list(graph.bodyRegion.blocks[0].operations)
    types = [body[at].results[0].type for at in places]
    fed = [body[at].results[0].type for at in places if at in given]
    inputs, results = _named(graph.arg_attrs), _named(graph.res_attrs)
    with InsertionPoint(program._module._body), graph.location:
        function = graph.function_type.value
        wider = GraphOp(
            MAIN,
            [*function.inputs, *fed],
            [*function.results, *types],
            [*inputs, *(f"{NAME}{at}{GIVEN}" for at in places if at in given)],
            [*results, *(f"{NAME}{at}" for at in places)],
        )
        with wider.block:
            _copied(body, list(graph.arguments), list(wider.arguments), places, given)
    graph.operation.erase()


def _copied(
    body: list[Any],
    before: list[Value],
    after: list[Value],
    places: Sequence[int],
    given: Collection[int],
) -> None:
    """Write BODY again, with AFTER for the arguments BEFORE; the rest of AFTER stands for values."""
    values: dict[Value, Value] = dict(zip(before, after, strict=False))
    fed = iter(after[len(before) :])
    watched: list[Value] = []
    for at, operation in enumerate(body):
        if operation.operation.name == END:
            coreai.output([*(values.get(it, it) for it in operation.operands), *watched])
            return
        clone = operation.operation.clone(ip=InsertionPoint.current)
        for number, operand in enumerate(operation.operands):
            clone.operands[number] = values.get(operand, operand)
        values |= zip(operation.results, clone.results, strict=True)
        if at in places:
            watched.append(clone.results[0])
            values |= {operation.results[0]: next(fed)} if at in given else {}


def _named(attributes: Any) -> list[str]:
    """Return the names in ATTRIBUTES of a graph's inputs or outputs."""
    return [it["coreai.name"].value for it in attributes]


def computed(program: AIProgram) -> Iterator[int]:
    """Yield the numbers of the operations that compute something in floating point from the inputs."""
    graph = program._get_graph(MAIN)
    if graph is None:
        return
    following: set[Value] = set(graph.arguments)
    for at, operation in enumerate(graph.bodyRegion.blocks[0].operations):
        if operation.operation.name == END or following.isdisjoint(operation.operands):
            continue
        following.update(operation.results)
        if len(operation.results) == 1 and _is_float(operation.results[0].type):
            yield at


def _is_float(kind: Type) -> bool:
    ranked = RankedTensorType(kind) if RankedTensorType.isinstance(kind) else None
    return ranked is not None and ranked.rank > 0 and str(ranked.element_type) in FLOATS
