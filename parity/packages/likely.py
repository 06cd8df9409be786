"""Rules for constants of which nobody wrote down how they came about, or that no rule of a manifest can say.

Each is a guess from where the constant stands or from what the source computes: its values have to bear it
out, as those of a manifest's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...converters.values import Array
from ..probes.probes import Probe
from .constants import exact_by_rule
from .gates import gates

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program
    from .source import SourceTensors


def likely_rules(
    program: Program,
    constants: Mapping[str, Array],
    source: SourceTensors,
    probes: Sequence[Probe],
) -> dict[str, Mapping[str, Any]]:
    """Return rules that the values bear out, by constant.

    Args:
        program: the package's.
        constants: those that are not explained.
        source: its tensors.
        probes: inputs that fit the package.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, value in gates(program, source) if constants else ():
        rule = {"value": value}
        if name in constants.keys() - found.keys() and holds(constants[name], rule, source):
            found[name] = rule
    rest = {name: array for name, array in constants.items() if name not in found}
    return found | dict(_computed(rest, source, probes))


def holds(array: Array, rule: Mapping[str, Any], source: SourceTensors) -> bool:
    """Say whether ARRAY has the values that RULE says."""
    return exact_by_rule(array, rule, source) is not None


def _computed(
    constants: Mapping[str, Array], source: SourceTensors, probes: Sequence[Probe]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield those of CONSTANTS that the source computes from its weights alone."""
    if not constants:
        return
    source.compute(probes, {array.size for array in constants.values()})
    for name, array in constants.items():
        rules = ({"computed": words} for words in source.computed)
        if rule := next((it for it in rules if holds(array, it, source)), None):
            yield name, rule
