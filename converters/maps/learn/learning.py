"""Learn a map from a class, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ..weightmap import WeightMap
from .proof import Proof
from .recording import record
from .relearning import Again
from .writing import write

if TYPE_CHECKING:
    from ...libraries import Target


class Learned(NamedTuple):
    """A map that was learned.

    Attributes:
        text: the map in notation; what is used is what was proved, this text, parsed.
        reads_values: whether the class looks at the numbers; then there is no map.
        notes: what a person should know of it.
        layout: what the class makes of the tensors, by name.
    """

    text: str
    reads_values: bool
    notes: tuple[str, ...]
    layout: dict[str, Header]


def trace(target: Target, config: Mapping[str, Any], headers: Mapping[str, Header]) -> Learned:
    """Return the map from tensors with HEADERS to the class TARGET, traced, printed and proved here.

    Class code runs in this process, without any limit; :func:`learn` gives it its own.

    Raises:
        UnsupportedError: the class reads values, fails, or does what no map can say; or the proof
            of a rule fails.
        BadInputError: the class does not take the config.
    """
    try:
        again = _sanitizer(target)
        found = record(again(config), headers)
        weight_map, notes = write(found, config, again)
        text = str(weight_map)
        parsed = WeightMap.parse(text, "learned")
        more = Proof(parsed, found, config).run()
    except UnsupportedError as error:
        raise UnsupportedError(f"{target}: {error}") from error
    return Learned(text, False, (*notes, *more), found.layout)


def _sanitizer(target: Target) -> Again:
    """Return what gives the ``sanitize`` of TARGET for a config; a fresh model is made each time."""
    return lambda config: lambda weights: target.sanitize(config, weights)
