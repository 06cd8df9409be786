"""How submodules are put together: what is skipped, not added, in another order, or on the wrong half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, permutations
from typing import Final

import numpy as np

from ...converters.values import Array
from .evidence import ACTIVATIONS, INPUT, Observation, norm, siblings

SAME: Final = (
    1e-6  # a sum or product of recordings recomputed in float64; float32 recordings reach 1e-7
)


def _equal(it: Observation, one: Array, other: Array) -> bool:
    return one.shape == other.shape and norm(one - other) <= max(SAME, it.own) * norm(other)


def skipped(it: Observation) -> str | None:
    """A submodule that returns what it receives."""
    entered = it.inputs.get(it.site + INPUT)
    if entered is None or it.site.endswith(INPUT) or not _equal(it, it.pair[0], it.rows(entered)):
        return None
    return "it returns what it receives: all of it is skipped"


def residual(it: Observation) -> str | None:
    """A sum without what a submodule receives."""
    found, wanted = it.pair
    for path, array in _alike(it).items():
        if path.endswith(INPUT) and it.accounts(found, wanted, wanted - it.rows(array)):
            return f"what reaches {path.removesuffix(INPUT)} is not added: the residual is lost"
    return None


def order(it: Observation) -> str | None:
    """A value of another place in the chain of submodules."""
    found, wanted = it.pair
    rows = {path: it.rows(array) for path, array in _alike(it).items()}
    right = next((path for path, part in rows.items() if _equal(it, part, wanted)), "")
    for path, part in rows.items():
        if not _equal(it, part, wanted) and _equal(it, found, part):
            named = right.removesuffix(INPUT)
            instead = f", not what {named} gives" if named else ""
            where = "what reaches " if path.endswith(INPUT) else ""
            return f"it has {where}{path.removesuffix(INPUT)}{instead}: another order of submodules"
    return None


def _alike(it: Observation) -> Mapping[str, Array]:
    return {
        path: array
        for path, array in it.recording.items()
        if path != it.site and array.shape == it.wanted.shape
    }


def _gates(it: Observation) -> Iterator[tuple[str, str, str, Array, Array]]:
    """Yield activation, gate and other factor, whose product the reference has, by path and rows."""
    beside = siblings(it) if it.site.endswith(INPUT) else {}
    rows = {path: it.rows(array) for path, array in beside.items() if _fits(it, array)}
    for (gate, g), (other, o) in permutations(rows.items(), 2):
        for name, function in ACTIVATIONS.items():
            if _equal(it, function(g) * o, it.pair[1]):
                yield name, gate, other, g, o


def _halves(it: Observation) -> Iterator[tuple[str, str, str, Array, Array]]:
    """Yield the same where the gate is a part of what one projection gives, and the factor no record.

    The factor is what the reference's product is once the activation is taken out.
    """
    width, wanted = it.wanted.shape[-1] if it.wanted.ndim else 0, it.pair[1]
    for path, array in (siblings(it) if it.site.endswith(INPUT) else {}).items():
        if array.shape[:-1] != it.wanted.shape[:-1] or array.shape[-1] <= width:
            continue
        for start in range(0, array.shape[-1] - width + 1, max(width, 1)):
            g = it.rows(array[..., start : start + width])
            for name, function in ACTIVATIONS.items():
                part = function(g)
                if np.all(part):
                    yield name, path, "the other factor", g, wanted / part


def _fits(it: Observation, array: Array) -> bool:
    return array.shape == it.wanted.shape and array.shape != () and array.dtype.kind == "f"


def gate(it: Observation) -> str | None:
    """An activation on the other factor of a gated product."""
    found, wanted = it.pair
    for name, path, other, g, o in chain(_gates(it), _halves(it)):
        if it.accounts(found, wanted, ACTIVATIONS[name](o) * g):
            return f"{name} is applied to {other}, the reference applies it to {path}"
    return None


def gate_activation(it: Observation) -> str | None:
    """Another activation of a gate."""
    found, wanted = it.pair
    for name, path, _, g, o in chain(_gates(it), _halves(it)):
        if it.accounts(found, wanted, g * o):
            return f"no activation of {path}, the reference has {name}"
        for another, function in ACTIVATIONS.items():
            if another != name and it.accounts(found, wanted, function(g) * o):
                return f"{another} of {path}, the reference has {name}"
    return None
