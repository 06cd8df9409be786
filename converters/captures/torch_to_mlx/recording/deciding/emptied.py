"""Masks that show nothing, whatever values say: those by which code chooses rows, or of which it asks whether they show any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..places import forward_of_caller, forward_of_node

_ATEN: Final = torch.ops.aten
_COUNTS: Final = frozenset((_ATEN.any.default, _ATEN.sum.default, _ATEN.count_nonzero.default))
_CHOOSES: Final = {_ATEN.nonzero.default: 0, _ATEN.masked_select.default: 1}
_INDEXES: Final = frozenset((_ATEN.index, _ATEN.index_put, _ATEN.index_put_))
_ITEM: Final = _ATEN._local_scalar_dense.default
_GIVEN: Final = ("given", 0)  # in place of a line, of masks that the module is called with

Line = tuple[str, int]  # a file and a line of a ``forward`` in it


class Emptied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Empties masks in its block.

    Args:
        made_at: the lines of code whose masks are emptied; none: they are noted, and stay as they are.
        which: 0 or 1, for half of the masks that a line makes.

    Attributes:
        lines: those that made masks by which rows were chosen or counted.
        undecided: whether code asked for a value that no mask gives.
    """

    def __init__(self, made_at: Collection[Line] = (), which: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made_at, self._which = frozenset(made_at), which
        self.lines: set[Line] = set()
        self.undecided = False
        self._line: Line | None = None
        self._made: Counter[Line] = Counter()
        self._from: dict[int, Line] = {}  # memory of a mask -> its line
        self._counts: set[int] = set()  # memory of what counts, or follows from that
        self._kept: list[torch.Tensor] = []  # so that no memory comes again

    def at(self, node: Node | None) -> None:
        """Take what runs from now on for that of NODE's line; of none, for the running code's."""
        self._line = None if node is None else forward_of_node(node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives."""
        args = self._given(func, args)
        if func is _ITEM and _memory(args[0]) not in self._counts:
            self.undecided = True
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            given = {*map(_memory, _tensors((args, kwargs)))}
            self._note(func, args, given, result)
        return result

    def _note(self, func: Any, args: Any, given: Collection[int], result: torch.Tensor) -> None:
        counts = func in _COUNTS and len(args) == 1
        if result.ndim == 0 and (counts or not self._counts.isdisjoint(given)):
            self._counts.add(_memory(result))
            self._kept.append(result)
        elif result.ndim and result.dtype == torch.bool and _memory(result) not in given:
            line = self._line or forward_of_caller()
            self._from[_memory(result)] = line
            self._kept.append(result)
            if self._empties(line):
                result.zero_()

    def _empties(self, line: Line) -> bool:
        """Tell whether to empty the next mask of LINE."""
        place = self._made[line]
        self._made[line] += 1
        half = (place // 2).bit_count() % 2  # a line may make each mask in two steps
        return line in self._made_at and self._which in (None, half)

    def _given(self, func: Any, args: Any) -> Any:
        """Return ARGS with masks that the module was called with emptied; note the lines of all by which FUNC chooses."""
        if getattr(func, "overloadpacket", None) in _INDEXES:
            masks = [self._mask(x) if _is_mask(x) else x for x in args[1]]
            return (args[0], masks, *args[2:])
        place = 0 if func in _COUNTS and len(args) == 1 and _is_mask(args[0]) else None
        place = _CHOOSES.get(func, place)
        if place is None:
            return args
        return (*args[:place], self._mask(args[place]), *args[place + 1 :])

    def _mask(self, mask: torch.Tensor) -> torch.Tensor:
        line = self._from.get(_memory(mask), _GIVEN)
        self.lines.add(line)
        return torch.zeros_like(mask) if line == _GIVEN in self._made_at else mask


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    return (it for it in pytree.tree_leaves(value) if isinstance(it, torch.Tensor))
