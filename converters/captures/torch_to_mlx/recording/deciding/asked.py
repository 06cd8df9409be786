"""What a module's own code asked of sizes that vary, as in ``if length % 2``: it holds for the example, and must for others.

``torch.export`` keeps bounds of single sizes, which the inputs' ports have. Of other answers its program says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import sympy
from sympy.logic.boolalg import BooleanAtom
from torch.utils._sympy import functions

Tree = Any  # the name of a size, a number, or the name of a function and its arguments

_ORDER: Final = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


def condition(shapes: Any, asked: Any, answer: Any) -> Tree | None:
    """Return that ASKED has ANSWER; ``None`` where a port says it, or where values decide."""
    asked = shapes.replace(asked)
    if not asked.free_symbols or not asked.free_symbols <= shapes.backed_var_to_val.keys():
        return None
    answer = sympy.sympify(answer)
    if not answer.is_Boolean:
        holds = sympy.Eq(asked, answer)
    else:
        holds = asked if answer else sympy.Not(asked)
    return None if isinstance(holds, BooleanAtom) or _bounds(holds) else tree(holds)


def _bounds(holds: Any) -> bool:
    """Tell whether HOLDS bounds one size, as its port says: from 2 means from 1, unless 1 itself is asked for."""
    sides = getattr(holds, "args", ())
    alone = [it for it in sides if it.is_Symbol]
    if len(sides) != 2 or not alone or not any(it.is_number for it in sides):
        return False
    not_zero = isinstance(holds, sympy.Ne) and 0 in sides
    one, two = (holds.subs(alone[0], size) for size in (1, 2))
    return not_zero or (isinstance(holds, _ORDER) and not (two and not one))


def tree(expression: Any) -> Tree:
    """Return EXPRESSION as names and numbers."""
    if expression.is_Symbol:
        return str(expression)
    if expression.is_Integer or expression.is_Float:
        return int(expression) if expression.is_Integer else float(expression)
    return (type(expression).__name__, *map(tree, expression.args))


def holds(conditions: Mapping[Tree, str], sizes: Mapping[str, int]) -> list[str]:
    """Return the lines of code whose CONDITIONS do not hold for SIZES."""
    given = tuple(sorted(sizes.items()))
    return [line for each, line in conditions.items() if not _holds(each, given)]


def _holds(each: Tree, sizes: tuple[tuple[str, int], ...]) -> bool:
    try:
        return bool(_value(each, sizes))
    except ZeroDivisionError:  # a remainder of nothing
        return False


@lru_cache(maxsize=4096)
def _value(each: Tree, sizes: tuple[tuple[str, int], ...]) -> Any:
    if isinstance(each, str):
        return sympy.Integer(dict(sizes)[each])
    if isinstance(each, int | float):
        return sympy.sympify(each)
    function = getattr(functions, each[0], None) or getattr(sympy, each[0])
    return function(*(_value(it, sizes) for it in each[1:]))
