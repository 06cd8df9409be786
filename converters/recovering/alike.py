"""Which constant of one ML program stands where another has one: the same operations, wired alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from ...errors import UnsupportedError
from ..captures.constants import UNREAD
from ..captures.mlprogram.arithmetic import expressions_of, rounds_to
from ..captures.mlprogram.evaluator import constant_value, dtype_name
from ..captures.mlprogram.kernels.constexpr import CONSTEXPR

FIXED: Final = ("const", *CONSTEXPR)


class UnlikeError(Exception):
    """Two programs do not compute the same with other weights."""


class Places:
    """Pairs of what two programs compute with, found along their operations.

    Attributes:
        constants: constant of the first program -> those of the second in its places. One program may
            keep equal constants once.
    """

    def __init__(self) -> None:
        self.constants: dict[str, dict[str, Any]] = {}
        self._made: dict[Any, Any] = {}

    def blocks(self, one: Any, other: Any) -> None:
        """Walk along the operations of two blocks.

        Raises:
            UnlikeError: they are other ones, or other values go into them.
        """
        self._made |= dict(zip(_inputs(one), _inputs(other), strict=False))
        for mine, its in zip_longest(_steps(one), _steps(other)):
            if mine is None or its is None or mine.op_type != its.op_type:
                raise UnlikeError
            self._operations(mine, its)
        self._all(one.outputs, other.outputs)

    def _operations(self, one: Any, other: Any) -> None:
        if one.inputs.keys() != other.inputs.keys():
            raise UnlikeError
        for name, value in one.inputs.items():
            self._all(several(value), several(other.inputs[name]))
        for inner, its in zip_longest(one.blocks, other.blocks):
            self.blocks(inner, its)
        self._made |= dict(zip(one.outputs, other.outputs, strict=True))

    def _all(self, some: Sequence[Any], others: Sequence[Any]) -> None:
        for one, other in zip_longest(map(source_of, some), map(source_of, others)):
            if one is None or other is None or fixed(one) != fixed(other):
                raise UnlikeError
            if not fixed(one):
                if self._made.get(one) is not other:
                    raise UnlikeError
            elif dtype_name(one).startswith("fp") and dtype_name(other).startswith("fp"):
                if tuple(one.shape) != tuple(other.shape):
                    raise UnlikeError
                self.constants.setdefault(one.name, {})[other.name] = (one, other)
            elif not np.array_equal(constant_value(one), constant_value(other)):
                raise UnlikeError


def constants_apart(one: Any, other: Any) -> list[str]:
    """Return the constants of the function OTHER whose bits are not those of ONE in their places.

    Raises:
        UnsupportedError: both compute something else.
    """
    places = Places()
    try:
        places.blocks(one, other)
    except UnlikeError:
        raise UnsupportedError("the programs have other operations") from None
    pairs = [pair for its in places.constants.values() for pair in its.items()]
    return sorted({name for name, both in pairs if not _same_bits(*both)})


def _same_bits(one: Any, other: Any) -> bool:
    mine, its = (np.asarray(constant_value(it)) for it in (one, other))
    return mine.dtype == its.dtype and mine.tobytes() == its.tobytes()


def record_from(manifest: Mapping[str, Any], one: Any, other: Any) -> dict[str, Any] | None:
    """Return the record of the program with the body OTHER, by that of one with the body ONE.

    The second has no hashes: which tensor is which is told by the operations alone. Every constant that
    is not made of tensors is the same in both.

    Args:
        manifest: what the export of the first wrote.
        one: a function of the first.
        other: the same of the second.

    Returns:
        ``weights``, ``made`` and ``unread``; ``None`` where both compute something else.
    """
    places = Places()
    try:
        places.blocks(one, other)
    except UnlikeError:
        return None
    weights, made = dict(manifest.get("weights") or {}), dict(manifest.get("made") or {})
    found: dict[str, Any] = {"weights": {}, "made": {}, UNREAD: manifest.get(UNREAD, [])}
    for name, pairs in places.constants.items():
        for its, pair in pairs.items():
            if name in weights:
                _add_weight(found, its, weights[name])
            elif expressions := expressions_of(made.get(name) or {}):
                rule = found["made"].setdefault(its, {"value": expressions[0], "also": []})
                known = expressions_of(rule)
                rule["also"] += [it for it in expressions if it not in known]
            elif not rounds_to(*map(_numbers, pair)):
                return None
    clear = None not in found["weights"].values()
    return found if clear and not found["weights"].keys() & found["made"].keys() else None


def _add_weight(found: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> None:
    """Note in FOUND that the constant NAME is what ENTRY says, besides what it is already.

    What lies both ways in one constant is not clear, and noted as ``None``.
    """
    keys = [entry["key"], *entry.get("also", ())]
    turned = bool(entry.get("transposed"))
    known = found["weights"].get(name, {"key": keys[0], "transposed": turned, "also": []})
    if known is None or known["transposed"] != turned:
        found["weights"][name] = None
        return
    also = {*known["also"], *keys} - {known["key"]}
    found["weights"][name] = {**known, "also": sorted(also)}


def _steps(block: Any) -> Iterator[Any]:
    return (it for it in block.operations if not rounds(it) and it.op_type not in FIXED)


def rounds(operation: Any) -> bool:
    """Say whether OPERATION gives floats another precision, and does nothing else."""
    if operation is None or operation.op_type != "cast":
        return False
    return all(dtype_name(it).startswith("fp") for it in (operation.x, operation.outputs[0]))


def source_of(variable: Any) -> Any:
    """Return what VARIABLE is a cast of."""
    while variable is not None and rounds(variable.op):
        variable = variable.op.x
    return variable


def fixed(variable: Any) -> bool:
    """Say whether VARIABLE is a constant."""
    return variable.op is not None and variable.op.op_type in FIXED


def several(value: Any) -> Sequence[Any]:
    """Return the variables in VALUE, one or several of an operation's inputs."""
    return value if isinstance(value, list | tuple) else (value,)


def _inputs(block: Any) -> list[Any]:
    inputs = block.inputs
    return [*(inputs.values() if isinstance(inputs, Mapping) else inputs)]


def _numbers(variable: Any) -> Any:
    """Return the numbers of VARIABLE; those beyond float16, as masks have, are its bounds."""
    numbers, bound = np.asarray(constant_value(variable)), float(np.finfo(np.float16).max)
    return np.clip(numbers, -bound, bound)
