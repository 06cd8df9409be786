"""Whether a mask shows anything, as loops over experts ask: taken to, while ``torch.export`` records.

That is right where no rows change nothing, which :mod:`none` finds: to skip them is the same then.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any, Final
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

Counts = list[Any]  # what code has of a mask that shows so many, for each of _TRIED

_TRIED: Final = (0, 1, 2, 1000)  # nothing, and something
_COUNTED: Final[dict[str, Callable[[int], Any]]] = {"any": bool, "sum": int, "count_nonzero": int}
_COMPARED: Final = {
    name: getattr(operator, stem)
    for stem in ("eq", "ne", "lt", "le", "gt", "ge")
    for name in (stem, f"__{stem}__")
}
_NEGATED: Final = ("logical_not", "bitwise_not", "__invert__")
_ANSWERS: Final = ("__bool__", "is_nonzero", "item")
_NUMBERS: Final = ("item", "__int__", "__index__")
_NAMES: ContextVar[set[str] | None] = ContextVar("names", default=None)


@contextlib.contextmanager
def taken_to_show_some(module: torch.nn.Module) -> Iterator[None]:
    """Let every mask show something in the block, where MODULE asks whether it does."""
    own, asked = module.forward, _Asked(_most_asked(module))

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with asked:
            return own(*args, **kwargs)

    token = _NAMES.set(asked.numbers)
    try:
        with mock.patch.object(module, "forward", forward):
            yield
    finally:
        _NAMES.reset(token)


def _most_asked(module: torch.nn.Module) -> int:
    """Return more than loops over experts ask, one by one; a loop that ends by values would ask for ever."""
    stacked = sum(len(it) for it in module.parameters() if it.ndim > 2)
    return 100 + 4 * (len([*module.modules()]) + stacked)


def answer_of(asked: Any, sizes: Any) -> bool | None:
    """Return the answer to ASKED, of one of SIZES or counts, that is the same for all but nothing; ``None``: there is none."""
    names, symbols = _NAMES.get(), list(getattr(asked, "free_symbols", ()))
    if names is None or len(symbols) != 1:
        return None
    if symbols[0] not in sizes and str(symbols[0]) not in names:
        return None
    return _decided([asked.subs(symbols[0], count) for count in _TRIED])


def _decided(counts: Counts) -> bool | None:
    none, *some = map(bool, counts)
    return some[0] if len(set(some)) == 1 and none != some[0] else None


class _Asked(TorchFunctionMode):
    """Answers whether masks show anything, MOST times; NUMBERS are the names of those that say how much."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most
        self.numbers: set[str] = set()
        self._counts: MutableMapping[Any, Counts] = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives."""
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        counts = self._counts.get(first) if isinstance(first, torch.Tensor) else None
        if counts is not None and name in _ANSWERS:
            found = _decided(counts) if self._left else None
            self._left -= found is not None
            if found is not None and (name != "item" or isinstance(counts[0], bool)):
                return found
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.SymInt) and counts is not None and name in _NUMBERS:
            self.numbers |= {str(it) for it in result.node.expr.free_symbols}
        elif isinstance(result, torch.Tensor) and not result.ndim:
            self._note(name, counts, args, result)
        return result

    def _note(self, name: str, counts: Counts | None, args: Any, result: Any) -> None:
        if name in _COUNTED and len(args) == 1 and args[0].dtype == torch.bool:
            if type(args[0]) is not torch.Tensor:  # a constant shows what it shows
                self._counts[result] = [*map(_COUNTED[name], _TRIED)]
        elif counts and name in _COMPARED and not isinstance(args[-1], torch.Tensor):
            self._counts[result] = [_COMPARED[name](it, args[1]) for it in counts]
        elif counts and name in _NEGATED:
            self._counts[result] = [not it for it in counts]
