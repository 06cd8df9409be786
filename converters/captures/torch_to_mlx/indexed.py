"""Inputs that index an axis as they are: which numbers they may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import mlx.core as mx
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from ....errors import MismatchError
from .dtypes import to_mlx

_SAME_VALUES: Final = frozenset(
    f"aten.{name}.default"
    for name in ("view", "reshape", "alias", "clone", "_to_copy", "unsqueeze", "expand", "detach")
)
_ALONG: Final = frozenset(  # operations on a tensor, one of its axes, and places there
    f"aten.{name}"
    for name in (
        *("gather.default", "index_select.default", "index_add.default", "index_copy.default"),
        *("index_fill.int_Scalar", "index_fill.int_Tensor", "index_reduce.default"),
        *("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"),
    )
)
_FROM_THE_END: Final = ("aten.index.Tensor", "aten.index_put.default")
_LOSSES: Final = {"aten.cross_entropy_loss.default": 4, "aten.nll_loss_nd.default": 4}
_IGNORED: Final = -100  # PyTorch's default


class Places(NamedTuple):
    """The first and the last place that an input may name, and a number that names none."""

    first: int
    last: int
    ignored: int | None = None

    def wrong(self, value: mx.array) -> int | None:
        """Return a number in VALUE that is no such place; ``None`` too where MLX knows no values, as it traces."""
        if value.size == 0:
            return None
        if self.ignored is not None:
            value = mx.where(value == self.ignored, mx.array(self.first, value.dtype), value)
        try:
            least, most = (int(found.item().real) for found in (value.min(), value.max()))
        except ValueError:
            return None
        if least < self.first:
            return least
        return most if most > self.last else None

    def problem(self, name: str, value: mx.array) -> str | None:
        """Say what the input NAME, VALUE, holds that is no such place."""
        wrong = self.wrong(value)
        if wrong is None:
            return None
        return (
            f"{name}: holds {wrong}, but it indexes a table of "
            f"{self.last + 1} rows, from {self.first} to {self.last}"
        )


def indexed(graph: Graph) -> dict[str, Places]:
    """Return graph value -> the places that all who index by it as it is have."""
    found: dict[str, Places] = {}
    for node in graph.nodes:
        for indices, places in _reads(node):
            other = found.get(name := _source(indices).name, places)
            both = (max(places.first, other.first), min(places.last, other.last))
            found[name] = Places(*both, places.ignored)
    return found


def _source(indices: Any) -> Any:
    while str(indices.target) in _SAME_VALUES:
        indices = indices.args[0]
    return indices


def _reads(node: Any) -> Iterator[tuple[Node, Places]]:
    """Yield the indices that NODE takes, with the places that there are where their number is fixed."""
    for indices, count, negative, ignored in _counted(node):
        whole = isinstance(indices, Node) and not _values(indices).is_floating_point()
        if whole and _values(indices).dtype != torch.bool and isinstance(count, int):
            yield indices, Places(-count if negative else 0, count - 1, ignored)


def _counted(node: Any) -> Iterator[tuple[Any, Any, bool, int | None]]:
    """Yield indices, the number of places, whether these also count from the end, and what names none."""
    kind = str(node.target)
    if kind == "aten.embedding.default":
        yield node.args[1], _values(node.args[0]).shape[0], False, None
    elif kind in _ALONG and _values(node.args[0]).ndim:
        yield node.args[2], _values(node.args[0]).shape[node.args[1]], False, None
    elif kind in _FROM_THE_END:
        sizes = _values(node.args[0]).shape
        for indices, count in zip(node.args[1], sizes, strict=False):
            yield indices, count, True, None
    elif kind == "aten.take.default":
        yield node.args[1], _values(node.args[0]).numel(), True, None
    elif kind in _LOSSES:
        place, scores = _LOSSES[kind], _values(node.args[0])
        ignored = node.args[place] if len(node.args) > place else _IGNORED
        yield node.args[1], scores.shape[min(1, scores.ndim - 1)], False, ignored


def _values(node: Any) -> torch.Tensor:
    found: torch.Tensor = node.meta["val"]
    return found


def check_example(places: Mapping[str, Places | None], example: Mapping[str, Any]) -> None:
    """Refuse an EXAMPLE, input -> tensor, that names others than PLACES, as PyTorch refuses it when it runs.

    Raises:
        MismatchError: all that are wrong are listed.
    """
    known = {
        name: (own, example[name])
        for name, own in places.items()
        if own and isinstance(example.get(name), torch.Tensor)
        if not isinstance(example[name], FakeTensor)
    }
    problems = [own.problem(name, to_mlx(value)) for name, (own, value) in known.items()]
    if found := [problem for problem in problems if problem]:
        raise MismatchError("the example inputs do not fit the module", found)
