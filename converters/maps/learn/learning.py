"""Learn a map from a class, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ...libraries import Target
from ..binding.weightmap import WeightMap
from ..notation.rules import Pairing, Rule, first_line
from .proof import Proof
from .rules.drafting import FAMILY
from .rules.relearning import Again
from .rules.writing import draft, write
from .trace.recording import record
from .trace.reduction import FEW, MORE, Reduced


class Learned(NamedTuple):
    """A map that was learned.

    Attributes:
        text: the map in notation; what is used is what was proved, this text, parsed.
        notes: what a person should know of it.
        layout: what the class makes of the tensors, by name.
    """

    text: str
    notes: tuple[str, ...]
    layout: dict[str, Header]


def trace(
    target: Target,
    config: Mapping[str, Any],
    headers: Mapping[str, Header],
    order: Reduced | None = None,
) -> Learned:
    """Return the map from tensors with HEADERS to the class TARGET, traced, printed and proved here.

    Class code runs in this process, without any limit; :func:`learn` gives it its own.

    Args:
        target: the class.
        config: an MLX config.
        headers: the source tensors.
        order: the same model with more experts in fewer layers, which must lie in the same order.

    Raises:
        UnsupportedError: the class reads values, fails, or does what no map can say; or the proof
            of a rule fails.
        BadInputError: the class does not take the config.
    """
    try:
        again = _sanitizer(target)
        found = record(again(config), headers)
        weight_map, notes, rules = write(found, config, again)
        if order is not None:
            more = record(again(order.config), order.headers)
            check_order(rules, draft(more, order.config, fewest=MORE).rules)
        text = str(weight_map)
        parsed = WeightMap.parse(text, "learned")
        uncompared = Proof(parsed, found, config).run()
    except UnsupportedError as error:
        raise UnsupportedError(f"{target}: {error}") from error
    return Learned(text, (*notes, *uncompared), found.layout)


def check_order(rules: Sequence[Rule], more: Sequence[Rule]) -> None:
    """Check that all of MORE are families, of more members, that follow one of RULES.

    Raises:
        UnsupportedError: one does not.
    """
    known = {_uncounted(rule) for rule in rules}
    other = [rule for rule in more if not has_family(rule) or _uncounted(rule) not in known]
    if other or not more:
        which = f": {first_line(other[0])}" if other else ""
        raise UnsupportedError(
            f"treats {MORE} experts otherwise than {FEW}, so a few cannot stand for all{which}"
        )


def has_family(rule: Rule) -> bool:
    """Return whether RULE takes tensors by an index."""
    return isinstance(rule, Pairing) and FAMILY in rule.indices


def _uncounted(rule: Rule) -> Rule:
    return replace(rule, where=()) if isinstance(rule, Pairing) else rule


def _sanitizer(target: Target) -> Again:
    """Return what gives the ``sanitize`` of TARGET for a config; a fresh model is made each time."""
    return lambda config: lambda weights: target.sanitize(config, weights)
