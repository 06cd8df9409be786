"""Write a part of a trace as the steps of a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, Final

import numpy as np

from .....errors import UnsupportedError
from ...execution.exchange import numpy_name
from ...programs.programs import Program, Step, constant_steps, step_of
from ..trace.opaque import Node
from ..trace.recording import Trace

LONGEST: Final = 64  # numbers of a constant that a program writes out
WORDS: Final = frozenset({"as", "by", "bits", "where", "true", "false", "same", "else"})


def program(
    trace: Trace,
    sources: Sequence[str],
    results: Sequence[str],
    resized: Callable[[Node], Node] | None = None,
) -> Program:
    """Return the steps from the tensors SOURCES to the arrays RESULTS of TRACE.

    Args:
        trace: what a class does.
        sources: names of inputs.
        results: ids of arrays.
        resized: changes each node first; by default those that do nothing are left out.

    Raises:
        UnsupportedError: a program has no such primitive.
    """
    nodes = in_turn(trace, results)
    writer = Writer(trace, sources, results)
    if resized is None:
        nodes = [node for node in nodes if not writer.passes(node)]
    else:
        nodes = [resized(node) for node in nodes]
    steps = [*writer.constants(nodes), *(writer.step(node) for node in nodes), *writer.copies()]
    return Program(tuple(steps))


def in_turn(trace: Trace, results: Sequence[str]) -> list[Node]:
    """Return the nodes that make RESULTS, operands first.

    The order follows from the computation alone: a trace may list two equal ones in other orders.
    """
    found: dict[int, Node] = {}
    pending = [(array, False) for array in reversed(results)]
    while pending:
        array, ready = pending.pop()
        place = trace.places.get(array)
        if place is None or place in found:
            continue
        if ready:
            found[place] = trace.nodes[place]
            continue
        operands = [operand[0] for operand in trace.nodes[place]["inputs"]]
        pending += [(array, True), *((operand, False) for operand in reversed(operands))]
    return list(found.values())


def nodes_of(trace: Trace, needed: Collection[str]) -> list[Node]:
    """Return the nodes that make arrays in NEEDED, in an order in which they can run."""
    places = {trace.places[array] for array in needed if array in trace.places}
    return [trace.nodes[place] for place in sorted(places)]


class Writer:
    """What the arrays of a trace are called in a program."""

    def __init__(self, trace: Trace, sources: Sequence[str], results: Sequence[str]) -> None:
        self.trace, self.results = trace, results
        self.same: dict[str, str] = {}  # the result of a node that does nothing -> its operand
        self.names = {trace.inputs[name]: f"#{at}" for at, name in enumerate(sources)}
        self.fresh = (name for name in map(_letters, count()) if name not in WORDS)

    def passes(self, node: Node) -> bool:
        """Return whether NODE hands its operand on as it is; its result is not made then."""
        if not does_nothing(node):
            return False
        self.same[node["outputs"][0][0]] = self.origin(node["inputs"][0][0])
        return True

    def origin(self, array: str) -> str:
        """Return the array that ARRAY is, made by a node that does something."""
        return self.same.get(array, array)

    def name(self, array: str) -> str:
        """Return what ARRAY is called."""
        array = self.origin(array)
        if array not in self.names:
            wanted = [at for at, result in enumerate(self.results) if self.origin(result) == array]
            self.names[array] = f"${wanted[0]}" if wanted else next(self.fresh)
        return self.names[array]

    def step(self, node: Node) -> Step:
        """Return the step of NODE."""
        arrays = [array[0] for array in node["inputs"]]
        names = {array: self.name(array) for array in arrays}
        for array in node["outputs"]:
            if array[0] in self.read:
                names[array[0]] = self.name(array[0])
        return step_of(node, names)

    def constants(self, nodes: Sequence[Node]) -> Iterator[Step]:
        """Yield the steps that make the constants of NODES; note what NODES read."""
        read = {self.origin(array[0]) for node in nodes for array in node["inputs"]}
        self.read = read | {self.origin(array) for array in self.results}
        for array, value in self.trace.constants.items():
            if array in self.read:
                yield from constant(self.name(array), value)

    def copies(self) -> Iterator[Step]:
        """Yield the steps that make results which are sources, or other results, once more."""
        for at, array in enumerate(self.results):
            if self.name(array) != f"${at}":
                yield Step((f"${at}",), "Copy", (self.name(array),))


def does_nothing(node: Node) -> bool:
    """Return whether NODE hands its operand on as it is."""
    if node["name"] == "Pad":
        return not any(node["arguments"][1]) and not any(node["arguments"][2])
    if node["name"] == "AsType":
        return numpy_name(node["arguments"][0]) == numpy_name(node["inputs"][0][2])
    if node["name"] in ("Broadcast", "Reshape", "Slice"):
        whole = node["name"] != "Slice" or not any(node["arguments"][0])
        return whole and tuple(node["inputs"][0][1]) == tuple(node["outputs"][0][1])
    return node["name"] in ("Contiguous", "Copy", "Full", "StopGradient")


def constant(name: str, value: np.ndarray[Any, Any]) -> list[Step]:
    """Return the steps that make a constant; runs of equal numbers are not written out.

    Raises:
        UnsupportedError: it is long, and no few runs.
    """
    if value.size <= LONGEST:
        return list(constant_steps(name, value))
    flat = value.reshape(-1)
    raw = flat.view(np.dtype(f"u{flat.dtype.itemsize}"))
    ends = [*(np.flatnonzero(raw[1:] != raw[:-1]) + 1).tolist(), flat.size]
    if len(ends) > LONGEST:
        raise UnsupportedError(f"its program has a constant of {value.size} different numbers")
    steps: list[Step] = []
    for at, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        steps += constant_steps(f"{name}_{at}", flat[start : start + 1])
        steps.append(Step((f"{name}_run{at}",), "Broadcast", (f"{name}_{at}",), ((stop - start,),)))
    runs = tuple(f"{name}_run{at}" for at in range(len(ends)))
    whole = name if value.ndim == 1 else f"{name}_flat"
    steps.append(Step((whole,), "Concatenate", runs, (0,)))
    if value.ndim != 1:
        steps.append(Step((name,), "Reshape", (whole,), (tuple(value.shape),)))
    return steps


def _letters(number: int) -> str:
    """Return a, b ... z, aa, ab ... for 0, 1 ..."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("a") + digit) + text
    return text
