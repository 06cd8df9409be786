"""Sizes while a module is recorded: kept open where Python or torch would fix them for no reason of the module's."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from sympy.logic.boolalg import Boolean
from torch.fx.experimental import recording, sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Mod

from ..places import is_model_code, line_of_caller
from .asked import Tree, condition
from .some import answer_of

_LEN: Final = len
_EVALUATE: Final = ShapeEnv.evaluate_expr
_REPLACE: Final = ShapeEnv._set_replacement
_MODULE, _CHECK, _KERNEL = "module", "check", "kernel"
_LAYERS: Final = (  # torch's code that decides as a module's does
    str(Path(torch.nn.__file__).parent),
    str(torch.functional.__file__),
)
_ASKING: Final = frozenset(
    (__file__, *(module.__file__ for module in (torch, symbolic_shapes, sym_node, recording)))
)


def length(of: Any) -> Any:
    """Do as ``len``; of a tensor that varies the length may vary too, which Python's own cannot say."""
    return of.shape[0] if isinstance(of, torch.Tensor) and of.ndim else _LEN(of)


def _evaluate(
    shapes: Any,
    asked: Any,
    hint: Any = None,
    fx_node: Any = None,
    size_oblivious: bool = False,
    fallback_value: bool | None = None,
    **options: Any,
) -> Any:
    """Answer as torch does; where torch's own code asks whether there are rows that values choose: there are.

    Where there are none, what it computes of them is not looked at, or the census refuses it.
    """
    if fallback_value is None:
        fallback_value = answer_of(asked, shapes.size_like)
    if fallback_value is None and _asks_for_none(shapes, asked) and _asker() != _MODULE:
        fallback_value = asked.rel_op == "!="
    return _EVALUATE(shapes, asked, hint, fx_node, size_oblivious, fallback_value, **options)


def _asks_for_none(shapes: Any, asked: Any) -> bool:
    """Tell whether ASKED is whether a size that values decide is 0; a number of the module's own is no size."""
    by_values = bool(asked.free_symbols) and asked.free_symbols <= set(shapes.size_like)
    return by_values and getattr(asked, "rel_op", "") in ("==", "!=") and asked.rhs == 0


def _asker() -> str:
    """Return who asks: an ``if`` of the module's, a check of torch's that raises, a kernel, or anything else of torch."""
    frame: Any = sys._getframe(1)
    asked_in_python = False
    while frame.f_code.co_filename in _ASKING:
        if frame.f_code.co_name == "_check_with":
            return _CHECK
        asked_in_python = asked_in_python or frame.f_code.co_filename == torch.__file__
        frame = frame.f_back
    file = frame.f_code.co_filename
    if asked_in_python and (is_model_code(frame) or file.startswith(_LAYERS)):
        return _MODULE
    return _KERNEL if file == torch._ops.__file__ else ""


def _matters(asked: Any, asker: str) -> bool:
    """Tell whether what is recorded may depend on what was ASKED, and torch itself does not ask as it pleases.

    A number is put into the recording; of remainders kernels ask which divide an axis.
    """
    if not isinstance(asked, Boolean) or asker in (_MODULE, _CHECK):
        return True
    return asker == _KERNEL and bool(asked.has(Mod))


@dataclass
class Sizes:
    """What became of sizes: those fixed all the same, and what was asked of others -> the line of code.

    CHOSEN are those of the questions that an ``if`` of the module's asked.
    """

    fixed: dict[int, str] = field(default_factory=dict)
    asked: dict[Any, str] = field(default_factory=dict)
    chosen: set[Any] = field(default_factory=set)

    @property
    def conditions(self) -> dict[Tree, str]:
        """What other sizes must fulfil -> the line that asked."""
        return _conditions(self.asked)

    @property
    def choices(self) -> set[Tree]:
        """Those of the conditions by which code chooses between two ways."""
        others = {it: line for it, line in self.asked.items() if it not in self.chosen}
        return self.conditions.keys() - _conditions(others).keys()


def _conditions(asked: Mapping[Any, str]) -> dict[Tree, str]:
    found = {condition(*question): line for question, line in asked.items()}
    return {each: line for each, line in found.items() if each is not None}


@contextlib.contextmanager
def sizes_open() -> Iterator[Sizes]:
    """Keep sizes open in the block; yield what the module's code does with them."""
    sizes = Sizes()

    def evaluate(shapes: Any, asked: Any, *given: Any, **options: Any) -> Any:
        answer = _evaluate(shapes, asked, *given, **options)
        if getattr(asked, "free_symbols", None) and _matters(asked, asker := _asker()):
            question = (shapes, asked, answer)
            sizes.asked.setdefault(question, line_of_caller())
            if asker == _MODULE and isinstance(asked, Boolean):
                sizes.chosen.add(question)
        return answer

    def replace(shapes: Any, symbol: Any, by: Any, why: str) -> None:
        if by.is_number:
            sizes.fixed.setdefault(int(by), line_of_caller())
        _REPLACE(shapes, symbol, by, why)

    passed_over = {*symbolic_shapes.uninteresting_files(), __file__}

    def files() -> set[str]:  # asked for every frame of every node
        return passed_over

    with (
        mock.patch.object(builtins, "len", length),
        # torch looks at the caller's code, past such files: an ``assert`` by values is recorded as one
        mock.patch.object(symbolic_shapes, "uninteresting_files", files),
        mock.patch.object(ShapeEnv, "evaluate_expr", evaluate),
        mock.patch.object(ShapeEnv, "_set_replacement", replace),
    ):
        yield sizes
