"""Arithmetic on configuration keys: ``where q = num_attention_heads * head_dim``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Number: TypeAlias = int | float
OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}
BINDING: Final = {"+": 1, "-": 1, "*": 2, "//": 2}  # how tightly an operator binds


@dataclass(frozen=True)
class Literal:
    """A number."""

    value: Number

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class ConfigKey:
    """A key of the configuration, dotted where it is nested, or a name defined before."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation:
    """Two expressions and an operator; chains bind to the left."""

    symbol: str
    left: Expression
    right: Expression

    def __str__(self) -> str:
        left = _bracket(self.left, BINDING[self.symbol])
        right = _bracket(self.right, BINDING[self.symbol] + 1)
        return f"{left} {self.symbol} {right}"


Expression: TypeAlias = Literal | ConfigKey | Operation


def _bracket(expression: Expression, binding: int) -> str:
    loose = isinstance(expression, Operation) and BINDING[expression.symbol] < binding
    return f"({expression})" if loose else str(expression)


@dataclass(frozen=True)
class Words:
    """What a capture may stand for, and must: ``p = weight | bias``."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " | ".join(self.words)


@dataclass(frozen=True)
class Definition:
    """One or more names for a size or for words: ``k = v = heads * head_dim``."""

    names: tuple[str, ...]
    value: Expression | Words

    def __str__(self) -> str:
        return f"{' = '.join(self.names)} = {self.value}"


def evaluate(expression: Expression, lookup: Callable[[str], Number]) -> Number:
    """Return the value of EXPRESSION; LOOKUP gives the value of a key.

    Raises:
        ArithmeticError: division by zero.

    >>> heads = Operation("//", ConfigKey("hidden_size"), Literal(64))
    >>> evaluate(heads, {"hidden_size": 384}.__getitem__)
    6
    """
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, ConfigKey):
        return lookup(expression.name)
    left, right = evaluate(expression.left, lookup), evaluate(expression.right, lookup)
    return OPERATORS[expression.symbol](left, right)  # type: ignore[arg-type]
