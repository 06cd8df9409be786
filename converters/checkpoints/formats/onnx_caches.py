"""Caches of ONNX decoders: inputs that take what outputs of the call before gave, keys and values of a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...values import Array

NAMED: Final = re.compile("past|present|cache")
OF_TEXT: Final = re.compile(
    "(?<!d)encoder|cross"
)  # in the name of what a decoder kept of an encoder's states
# What of a name says which cache it is.
KIND: Final = re.compile(rf"\d+|key(?!_?value)|value(?!s)|{OF_TEXT.pattern}")
BRANCH: Final = "use_cache_branch"  # optimum's name of the input that says whether caches are read
COUNTER: Final = (
    "cache_position"  # transformers' name of the input that counts the tokens of a call
)


class Cache(NamedTuple):
    """One cache.

    Attributes:
        taken: the input.
        given: the output that is the input of the next call; empty where none is.
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


class Kept(NamedTuple):
    """What calls of a graph take beside the inputs of a text.

    Attributes:
        own: keys and values of the text that is read, which each call gives longer.
        other: those of the states of an encoder, which stay as they are.
        branch: the input that says whether any are read; empty where there is none.
        counter: the one that counts the tokens of a call from the first of the text; likewise.
    """

    own: tuple[Cache, ...] = ()
    other: tuple[Cache, ...] = ()
    branch: str = ""
    counter: str = ""

    @property
    def taken(self) -> frozenset[str]:
        """The inputs."""
        names = {*(it.taken for it in (*self.own, *self.other)), self.branch, self.counter}
        return frozenset(names - {""})

    @property
    def given(self) -> frozenset[str]:
        """The outputs."""
        return frozenset({it.given for it in (*self.own, *self.other)} - {""})

    def first(self, rows: int) -> dict[str, Array]:
        """Return what the first call of a text of so many ROWS takes; an encoder's are empty."""
        empty = {it.taken: it.empty(rows) for it in (*self.own, *self.other)}
        return {**empty, **self._branch(later=False)}

    def after(self, found: Mapping[str, Array], *, begun: bool) -> dict[str, Array]:
        """Return what a call takes after one that gave FOUND, the first of a text if BEGUN.

        An encoder's are those of the first call: another has no need to give them again.
        """
        own = {it.taken: found[it.given] for it in self.own}
        first = self.other if begun and self.branch else ()
        return {**own, **{it.taken: found[it.given] for it in first}, **self._branch(later=True)}

    def counted(self, kept: Mapping[str, Array], tokens: int) -> dict[str, Array]:
        """Return the numbers of TOKENS that follow what is KEPT, where the graph asks for them."""
        before = kept[self.own[0].taken].shape[self.own[0].axis]
        return {self.counter: np.arange(before, before + tokens)} if self.counter else {}

    def _branch(self, *, later: bool) -> dict[str, Array]:
        return {self.branch: np.array([later])} if self.branch else {}


def size_of(axis: Any) -> int | None:
    """Return the size of an AXIS of a graph's input or output; ``None`` where it varies.

    Transformers' own exporter writes some as texts, ``"16"``.
    """
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return int(axis.dim_param) if axis.dim_param.isdecimal() else None


def kept_of(graph: Any, weights: Collection[str] = ()) -> Kept:
    """Return the caches among the inputs and outputs of GRAPH, whose initializers are WEIGHTS.

    They are in the order of their layers, a layer's keys before its values, where their names have these.
    All of them or none: an input that may be one and has no output of its kind leaves the others open. An
    encoder's need none, unless a branch of the graph is to give them first.
    """
    names = {it.name for it in graph.input if it.name not in weights}
    branch, counter = (name if name in names else "" for name in (BRANCH, COUNTER))
    inputs = [it for it in graph.input if it.name in names - {branch, counter} and _is_named(it)]
    outputs = [it.name for it in graph.output if _is_named(it)]
    own, other = (
        [
            *_caches(
                [it for it in inputs if _of_text(it.name) == kind],
                [it for it in outputs if _of_text(it) == kind],
            )
        ]
        for kind in (False, True)
    )
    open_ones = [it for it in other if branch and not it.given]
    if not own or open_ones or not all(it.given and it.sizes.count(0) == 1 for it in own):
        return Kept()
    return Kept((*own,), (*other,), branch, counter)


def _is_named(value: Any) -> bool:
    """Say whether VALUE, an input or output, has the name of a cache."""
    return bool(NAMED.search(value.name.lower()))


def _of_text(name: str) -> bool:
    """Say whether the cache called NAME is of an encoder's states.

    >>> _of_text("present.0.encoder.key"), _of_text("present.0.decoder.key")
    (True, False)
    """
    return bool(OF_TEXT.search(name.lower()))


def _caches(inputs: Sequence[Any], outputs: Sequence[str]) -> list[Cache]:
    """Return what INPUTS and OUTPUTS are as caches, in the order of their layers."""
    given = dict(_paired([it.name for it in inputs], outputs))
    found = [Cache(it.name, given.get(it.name, ""), _sizes(it)) for it in inputs]
    return sorted(found, key=lambda it: _kind(it.taken))


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


def _sizes(value: Any) -> tuple[int | None, ...]:
    """Return the sizes of VALUE: ``None`` for rows, which vary, 0 along other axes that do; none for a text, which has two."""
    sizes = [size_of(axis) for axis in value.type.tensor_type.shape.dim]
    return (*sizes[:1], *(0 if it is None else it for it in sizes[1:])) if len(sizes) > 2 else ()
