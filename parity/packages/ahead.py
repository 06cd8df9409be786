"""Constants that an exporter computed of weights ahead of time: in float32 again, or named where nobody can tell how.

Core AI's compiler reorders products and quotients first, so that a constant may be one that the source never has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.captures.mlprogram.arithmetic import makes_numbers
from ...converters.values import Array
from ..check.verdict import Stage
from ..weights.orders import shorten
from ..weights.reference_index import Explanation
from ..weights.sketches.sketch import Weights
from .constants import in_float32, rules_of
from .source import SourceTensors

if TYPE_CHECKING:
    from ..check.candidate import Candidate
    from ..goldens.golden import Golden

ALIKE: Final = 2.0**-9  # of a number: what tells it from another one in float16
HALF: Final = 0.5
SHOWN: Final = 3


def computed_ahead(
    golden: Golden,
    candidate: Candidate,
    explained: Sequence[Explanation],
    manifest: Mapping[str, Any],
) -> dict[str, Array]:
    """Return what CANDIDATE's constants in float16 are whose rules MANIFEST has, computed in float32.

    They are computed from weights that are rounded to float16, as those beside them are.
    """
    if golden.model is None or candidate.storage != "float16":
        return {}
    headers, rules = candidate.weights.headers, rules_of(manifest)
    made = [it.name for it in explained if it.kind == "made" and it.name in headers]
    asked = {n: rules[n] for n in made if headers[n].dtype == "F16" and rules.get(n)}
    if not asked:
        return {}
    source = SourceTensors(golden.model, halved=True)
    source.compute(golden.probes, {math.prod(headers[name].shape) for name in asked})
    values = {name: in_float32(rule, source) for name, rule in asked.items()}
    return {n: it.reshape(headers[n].shape) for n, it in values.items() if it is not None}


def changed_since(
    explained: Sequence[Explanation], weights: Weights, source: SourceTensors | None
) -> list[Explanation]:
    """Return EXPLAINED; of those of WEIGHTS that SOURCE computes but for some numbers, what they were made of."""
    if source is None:
        return [*explained]
    return [
        _changed(it, weights.read(it.name), source)
        if it.kind == "unexplained" and it.name in weights.headers
        else it
        for it in explained
    ]


def _changed(it: Explanation, array: Array, source: SourceTensors) -> Explanation:
    for known in (source.computed, *source.in_half.values()):
        for words, (value, parts) in known.items():
            if array.size > 1 and (part := alike(array, value)) >= HALF:
                count = round((1 - part) * array.size)
                detail = f"differs from {words} in {count:,} of {array.size:,} numbers"
                return it._replace(detail=detail, parts=tuple(map(source.own, parts)))
    return it


class Ahead:
    """What of a program an exporter may have computed ahead of time.

    Attributes:
        narrow: constants in float16 that are known to be computed, or may be, and that nothing puts back.
        unknown: constants that may be computed of weights, nobody can tell how: where none is lost, none has a weight's name.
        lost: weights that may have gone into these, or into single numbers.
        only: whether nothing else is wrong with the weights.
    """

    def __init__(
        self,
        candidate: Candidate,
        explained: Sequence[Explanation],
        read: Callable[[str], Array] | None,
    ) -> None:
        exported = candidate.manifest is not None
        headers = candidate.weights.headers if exported else {}
        wrong = [it for it in explained if not it.ok] if exported and read else []
        self.lost = [it.name for it in wrong if it.kind == "missing"]
        unknown = [
            it
            for it in wrong
            if it.kind == "unexplained" and it.name in headers and not it.parts
            if self.lost or not it.source
        ]
        put_back = candidate.exact.keys() | candidate.constants.keys()
        made = [it for it in explained if it.kind == "made" and makes_numbers(it.detail)]
        made = [it for it in made if it.name not in put_back]
        self.narrow = [
            it.name
            for it in (*made, *unknown)
            if it.name in headers and headers[it.name].dtype == "F16"
        ]
        self.unknown = [it.name for it in unknown]
        self.only = len(wrong) == len(self.unknown) + len(self.lost)


def alike(one: Array, other: Array) -> float:
    """Return the part of the numbers of ONE that are those of OTHER, of as many; 0 where that has others.

    >>> alike(np.array([1.0, 2.0, 3.0, 5.0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    0.75
    """
    if one.size != other.size:
        return 0.0
    ours, theirs = (it.ravel().astype(np.float64) for it in (one, other))
    return float(np.isclose(ours, theirs, rtol=ALIKE, atol=0).mean())


def weights_stage(stages: Sequence[Stage], ahead: Ahead) -> list[Stage]:
    """Return STAGES, that of the weights unverified where all that is wrong may be computed AHEAD of time.

    So it is where what the program computes is right.
    """
    ran = {it.name: it.status for it in stages}
    right = ran.get("structure") in ("pass", "unverified") and "fail" not in (
        status for name, status in ran.items() if name != "fingerprints"
    )
    if not right or not ahead.only or not ahead.lost + ahead.unknown:
        return [*stages]
    of = f" from {shorten(ahead.lost, SHOWN)}" if ahead.lost else ""
    into = shorten(ahead.unknown, SHOWN) if ahead.unknown else "single numbers"
    detail = f"{into} may be computed{of} ahead of time, nobody can tell how; outputs agree"
    return [
        it._replace(status="unverified", detail=detail)
        if (it.name, it.status) == ("fingerprints", "fail")
        else it
        for it in stages
    ]
