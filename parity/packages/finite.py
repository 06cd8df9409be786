"""Where the half precision of a package makes infinities or NaN that its float32 run does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ...converters.runtimes import Runner
from ..check.verdict import Stage

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.watching import Watched


def finite_stage(precision: Stage, declared: Runner, structure: Runner | None) -> Stage:
    """Return the stage PRECISION, failed where values inside a program overflow.

    Args:
        precision: as the outputs alone have it.
        declared: the candidate as it ships, after its runs on the probes.
        structure: the same in float32, after its own.
    """
    narrow: Mapping[int, Sequence[Watched]] = getattr(declared, "watched", {})
    if not narrow:  # no package: its tools need not be installed
        return precision
    from ...converters.captures.mlprogram.watching import overflows

    wide: Mapping[int, Sequence[Watched]] = getattr(structure, "watched", {})
    pairs = (zip(rows, wide[key], strict=True) for key, rows in narrow.items() if key in wide)
    for ran, exact in chain.from_iterable(pairs):
        if found := overflows(ran, exact):
            detail = f"{found}, where float32 has none; {precision.detail}"
            return precision._replace(status="fail", detail=detail)
    return precision
