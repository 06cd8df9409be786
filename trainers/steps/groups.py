"""Parameter groups: which optimizer with which settings updates which parameters, the same in every backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...errors import MismatchError
from ..configuration.updates import AdamWSection, MuonSection, OptimizerSection
from ..objectives.own import select_in

NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)  # coefficients of Muon's iteration


class Group(NamedTuple):
    """Parameters that are updated alike.

    Attributes:
        names: theirs, in order.
        settings: of their optimizer, the weight decay their own.
        factor: their learning rate as a multiple of the run's.
    """

    names: tuple[str, ...]
    settings: Any
    factor: float


def grouped(optimizer: OptimizerSection, shapes: Mapping[str, tuple[int, ...]]) -> list[Group]:
    """Return the groups of all parameters, by name and shape.

    Raises:
        MismatchError: a pattern of the settings means no parameter, or a group none that is left.
    """
    left = list(shapes)
    groups: list[Group] = []
    for number, section in enumerate(optimizer.groups):
        setting = f"optimizer.groups.{number}"
        meant = select_in(shapes, section.match, f"{setting}.match")
        own = section.model_dump(exclude={"match"}, exclude_none=True)
        if meant.isdisjoint(left):
            problem = "groups before it name all of its parameters, and the first that does counts"
            raise MismatchError(f"{setting} changes nothing", [problem])
        groups += _split([name for name in left if name in meant], optimizer, own, shapes)
        left = [name for name in left if name not in meant]
    return [group for group in [*groups, *_split(left, optimizer, {}, shapes)] if group.names]


def _split(
    names: list[str],
    optimizer: OptimizerSection,
    own: Mapping[str, float],
    shapes: Mapping[str, tuple[int, ...]],
) -> Iterator[Group]:
    """Yield NAMES as groups, with their OWN learning rate and weight decay: Muon takes matrices alone."""
    base = optimizer.learning_rate
    factor = own.get("learning_rate", base) / base
    decay = own.get("weight_decay", optimizer.weight_decay)
    yours = optimizer.model_copy(update={"weight_decay": decay})
    if not isinstance(optimizer, MuonSection):
        yield Group(tuple(names), yours, factor)
        return
    named = select_in(shapes, optimizer.adamw, "optimizer.adamw")
    matrices = [name for name in names if len(shapes[name]) == 2 and name not in named]
    yield Group(tuple(matrices), yours, factor)
    rate = own.get("learning_rate", optimizer.adamw_learning_rate)
    others = AdamWSection(weight_decay=decay)
    rest = [name for name in names if name not in set(matrices)]
    yield Group(tuple(rest), others, rate / base)


def shape_factor(shape: tuple[int, ...], adjust: str) -> float:
    """Return what Muon multiplies the update of a matrix of SHAPE by.

    >>> shape_factor((8, 2), "original"), shape_factor((100, 4), "match_rms_adamw")
    (2.0, 2.0)
    """
    rows, columns = shape
    if adjust == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
