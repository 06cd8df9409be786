"""Pass 1: pair every tensor, check every shape, and refuse the whole job if anything is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import MismatchError
from ..checkpoints.base import Header
from ..dtypes import CODE, FLOATS, NUMPY, dtype_of
from ..values import LowRank
from .axes import extent, names, shape, show
from .copies import copies
from .definitions import Values, values
from .instances import COMPARED, Instance, collect, gaps, nearest, unmatched
from .matching import Match, Matcher
from .plan import Bound, Dropped, Plan, Step
from .rules import Affine, Cast, Drop, Pairing, Term, Tie
from .sizes import Equation, equations, solve

if TYPE_CHECKING:
    from .weightmap import WeightMap

Headers = Mapping[str, Header]


def bind(
    weight_map: WeightMap,
    headers: Headers,
    *,
    config: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    updates: Mapping[str, LowRank] | None = None,
    target: Headers | None = None,
) -> Plan:
    """Return what WEIGHT_MAP does to the tensors of HEADERS, from its left side to its right.

    A ``<->`` rule must match at least one tensor unless it is marked ``?`` or ``else``. A capture
    that is an axis runs from 0 without gaps. A tensor that a ``==`` rule names must have the dtype
    and the shape of the one that it equals; its bytes are compared in pass 2, before any is written.

    Args:
        weight_map: the map, in the direction to go.
        headers: the source tensors.
        config: values for ``where``; a key that is not there is no error while shapes tell the size.
        sizes: sizes that neither the config nor the shapes tell, such as ``Plan.sizes`` of the way
            there.
        updates: low-rank updates by source name, to be merged in pass 2.
        target: what the target must be, in names and shapes.

    Raises:
        MismatchError: anything does not fit; carries all of it.
    """
    binder = Binder(weight_map, headers, Given(config or {}, sizes or {}))
    plan = binder.plan(updates or {})
    if target is not None:
        binder.compare(plan, target)
    if binder.problems:
        summary = f"{weight_map.name} does not fit these tensors"
        raise MismatchError(summary, sorted(set(binder.problems)))
    return plan
