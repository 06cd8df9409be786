"""Caches of ONNX decoders: inputs that take what outputs of the call before gave, keys and values of a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...values import Array

NAMED: Final = re.compile("past|present|cache")
KIND: Final = re.compile(r"\d+|key(?!_?value)|value(?!s)")  # what of a name says which cache it is


class Cache(NamedTuple):
    """One cache.

    Attributes:
        taken: the input.
        given: the output that is the input of the next call.
        sizes: of the input, 0 along the axis that grows by the tokens that are read.
    """

    taken: str
    given: str
    sizes: tuple[int | None, ...]

    @property
    def axis(self) -> int:
        """The one that grows."""
        return self.sizes.index(0)

    def empty(self, rows: int) -> Array:
        """Return it before any token is read of so many ROWS."""
        return np.zeros([rows if size is None else size for size in self.sizes], np.float32)


def size_of(axis: Any) -> int | None:
    """Return the size of an AXIS of a graph's input or output; ``None`` where it varies.

    Transformers' own exporter writes some as texts, ``"16"``.
    """
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return int(axis.dim_param) if axis.dim_param.isdecimal() else None


def caches_of(graph: Any, weights: Collection[str] = ()) -> tuple[Cache, ...]:
    """Return the caches among the inputs and outputs of GRAPH, whose initializers are WEIGHTS.

    They are in the order of their layers, a layer's keys before its values, where their names have these.
    All of them or none: an input that may be one and has no output of its kind leaves the others open.
    """
    taken = {it.name: _growing(it) for it in graph.input if it.name not in weights}
    inputs = [name for name in taken if NAMED.search(name.lower())]
    outputs = [it.name for it in graph.output if NAMED.search(it.name.lower())]
    given = dict(_paired(inputs, outputs))
    whole = [Cache(name, given[name], taken[name]) for name in inputs if name in given]
    complete = len(whole) == len(inputs) and all(it.sizes for it in whole)
    return tuple(sorted(whole, key=lambda it: _kind(it.taken))) if complete else ()


def _paired(inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield which of OUTPUTS belongs to each of INPUTS: of the same layer and kind, else in the same order."""
    kinds = [{_kind(it): it for it in side} for side in (inputs, outputs)]
    by_name = len(kinds[0]) == len(inputs) and len(kinds[1]) == len(outputs)
    if by_name and kinds[0].keys() == kinds[1].keys():
        yield from ((name, kinds[1][kind]) for kind, name in kinds[0].items())
    elif len(inputs) == len(outputs):
        yield from zip(inputs, outputs, strict=True)


def _kind(name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers and kinds in NAME.

    >>> _kind("past_key_values.11.key"), _kind("past_value_3")
    (((11,), ('key',)), ((3,), ('value',)))
    """
    words = KIND.findall(name.lower())
    numbers = tuple(int(it) for it in words if it.isdecimal())
    return numbers, tuple(it for it in words if not it.isdecimal())


def _growing(value: Any) -> tuple[int | None, ...]:
    """Return the sizes of VALUE, ``None`` where they vary, 0 along the one axis that grows; empty for no cache."""
    sizes = [size_of(axis) for axis in value.type.tensor_type.shape.dim]
    varying = [at for at, size in enumerate(sizes) if at and size is None]
    if len(varying) != 1 or len(sizes) <= 2:  # a text has two
        return ()
    return (*sizes[: varying[0]], 0, *sizes[varying[0] + 1 :])
