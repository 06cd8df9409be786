"""Rules for constants of which nobody wrote down how they came about, or that no rule of a manifest can say.

Each is a guess from where the constant stands or from what the source computes: its values have to bear it
out, as those of a manifest's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.captures.mlprogram.arithmetic import INVERTED
from ...converters.values import Array
from ..probes.probes import Probe
from .constants import exact_by_rule
from .gates import gates

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program
    from .source import SourceTensors

MEAN: Final = ".running_mean"
NORM, DIRECTION = ".original0", ".original1"  # of torch's parametrization
INVERSE: Final = "reciprocal"  # converters multiply by it where the source divides by a constant
MATRIX: Final = 2  # axes of a constant that may be multiplied from the other side
PARTS: Final = ("running_mean", "running_var", "weight", "bias")  # of a batch norm


def likely_rules(
    program: Program | None,
    constants: Mapping[str, Array],
    source: SourceTensors,
    probes: Sequence[Probe],
) -> dict[str, Mapping[str, Any]]:
    """Return rules that the values bear out, by constant.

    Args:
        program: the package's; ``None`` where the file is no ML program.
        constants: those that are not explained.
        source: its tensors.
        probes: inputs that fit the package.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, value in gates(program, source) if constants and program else ():
        rule = {"value": value}
        if name in constants.keys() - found.keys() and holds(constants[name], rule, source):
            found[name] = rule
    rules = [*folded(source)] if constants else []
    for name in constants.keys() - found.keys():
        fitting = (it for size, it in rules if size == constants[name].size)
        if made := next((it for it in fitting if holds(constants[name], it, source)), None):
            found[name] = made
    rest = {name: array for name, array in constants.items() if name not in found}
    return found | dict(_computed(rest, source, probes))


def holds(array: Array, rule: Mapping[str, Any], source: SourceTensors) -> bool:
    """Say whether ARRAY has the values that RULE says."""
    return exact_by_rule(array, rule, source) is not None


def folded(source: SourceTensors) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rules for what converters make of batch norms and norms of weights in SOURCE, with its size.

    The one is what a batch norm adds, once its factor is in the weights before it (Ioffe and Szegedy 2015,
    algorithm 2); the other a weight times its norm, which is divided by its length as the program runs
    (Salimans and Kingma 2016, equation 2).
    """
    for name, shape in source.shapes.items():
        path = name.removesuffix(MEAN)
        epsilon = source.epsilon(path) if name.endswith(MEAN) else None
        if epsilon is not None:
            mean, variance, gain, added = ({"key": f"{path}.{it}"} for it in PARTS)
            factor = ["mul", gain, ["rsqrt", ["add", variance, epsilon]]]
            yield math.prod(shape), {"value": ["sub", added, ["mul", mean, factor]]}
        if name.endswith(DIRECTION):
            norm = f"{name.removesuffix(DIRECTION)}{NORM}"
            yield math.prod(shape), {"value": ["mul", {"key": name}, {"key": norm}]}


def _computed(
    constants: Mapping[str, Array], source: SourceTensors, probes: Sequence[Probe]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield those of CONSTANTS that the source computes from its weights alone, or divides by."""
    if not constants:
        return
    sizes = {array.size for array in constants.values()}
    source.compute(probes, sizes)
    known = dict(_holding(constants, source))
    rest = {n: it for n, it in constants.items() if n not in known and it.dtype == np.float16}
    if rest:
        source.compute_in_half(probes, sizes)
    yield from (known | dict(_holding(rest, source))).items()


def _holding(
    constants: Mapping[str, Array], source: SourceTensors
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the first rule that each of CONSTANTS bears out, if any does."""
    for name, array in constants.items():
        if rule := next((it for it in _of(name, array, source) if holds(array, it, source)), None):
            yield name, rule


def _of(name: str, array: Array, source: SourceTensors) -> Iterator[Mapping[str, Any]]:
    """Yield rules that ARRAY, called NAME, may follow: SOURCE computes it, or divides by what it computes or has."""
    yield from ({"computed": words} for words in source.computed)
    ways = source.in_half.items() if array.dtype == np.float16 else ()
    yield from ({"computed": words, "in": way} for way, found in ways for words in found)
    if array.ndim == MATRIX:
        known = (n for n, it in source.computed.items() if it.value.shape == array.shape[::-1])
        yield from ({"computed": words, "turned": True} for words in known)
    if INVERTED not in name:
        return
    yield from ({"computed": words, "applied": INVERSE} for words in source.computed)
    yield from ({"value": [INVERSE, {"key": key}]} for key in source.of_size(array.shape))
