"""Masks that are computed twice alike: reads by them are as long as each other, which ``torch.export`` cannot know."""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

_COMPARISONS: Final = frozenset(
    [
        *("__ge__", "__gt__", "__le__", "__lt__", "__eq__", "__ne__"),
        *("ge", "gt", "le", "lt", "eq", "ne", "isnan", "isfinite", "isinf"),
    ]
)
WRITES: Final = re.compile(r"__set\w*__|[^_].*_|__i(?!n)\w+__")  # in place, __iadd__ among them


class SameMasks(TorchFunctionMode):
    """Reads by the first of the masks that compare the same tensors alike."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[Any, tuple[torch.Tensor, Any]] = {}  # comparison -> first mask, operands
        self._first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # mask -> itself, first mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__getitem__" and isinstance(args[1], torch.Tensor):
            _, mask = self._first.get(id(args[1]), (None, args[1]))
            return func(args[0], mask)
        result = func(*args, **kwargs)
        if WRITES.fullmatch(name) or "out" in kwargs:
            self._made.clear()
            self._first.clear()
        elif name in _COMPARISONS and not kwargs and type(result) is not bool:
            self._note(name, args, result)
        return result

    def _note(self, name: str, operands: tuple[Any, ...], mask: torch.Tensor) -> None:
        key = (name.strip("_"), *map(_identity, operands))
        first, _ = self._made.setdefault(key, (mask, operands))  # kept, so that no id comes again
        self._first[id(mask)] = (mask, first)


def _identity(operand: Any) -> Any:
    return id(operand) if isinstance(operand, torch.Tensor) else repr(operand)
