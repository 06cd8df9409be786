"""Which type every tensor of a quantized source takes: the one that keeps its codes, if one does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from ..quantization import Dequantized, Scheme
from ..values import Array
from .blocks import Route, route, routes
from .types import FLOATS, fitting

FIRST: Final = 1 << 12  # scales looked at first: most types are ruled out by these
PIECE: Final = 1 << 18  # and then at a time
FALLBACK: Final = "Q8_0"  # of codes that no type keeps
SHORT, WIDE = "BF16", "F32"  # of numbers with few digits, and of any others


class Choice(NamedTuple):
    """How a quantized weight will be stored.

    Attributes:
        kind: the ggml type.
        codes: whether its codes are kept, and are not chosen again.
        error: of its values, in steps of their groups, where codes are kept and scales are not.
        why: what is lost; empty where nothing is.
    """

    kind: str
    codes: bool = False
    error: float = 0.0
    why: str = ""


def choose_type(
    source: Dequantized, members: Sequence[str], columns: int, kind: str | None
) -> Choice:
    """Return the type for the weights MEMBERS of SOURCE, each of COLUMNS.

    Args:
        source: a quantized checkpoint.
        members: names of weights that become one tensor.
        columns: of each.
        kind: a type that the user asks for; ``None`` for the one that keeps every value.
    """
    schemes = {source.schemes.get(name) for name in members}
    scheme = schemes.pop() if len(schemes) == 1 else None
    if scheme is None:
        return Choice(fitting((columns,), kind or WIDE))
    kinds = [each for each in routes(scheme, columns) if kind in (None, each)]
    nearest = _nearest(source, members, scheme, kinds)
    if nearest.exact:
        return Choice(nearest.kind, codes=True)
    if np.isfinite(nearest.error):
        why = f"{scheme}; {nearest.kind} rounds what codes are worth, by {nearest.error:.2g} steps"
        return Choice(nearest.kind, codes=True, error=nearest.error, why=f"{why} at most")
    if kind is None and not scheme.affine:
        alone = all("global_scale" not in source.part_names(name) for name in members)
        return Choice(SHORT if alone else WIDE)
    wanted = fitting((columns,), kind or FALLBACK)
    return Choice(wanted, why="" if wanted in (SHORT, WIDE) else _lost(scheme, wanted))


def _lost(scheme: Scheme, kind: str) -> str:
    what = "every value rounded" if kind in FLOATS else "codes chosen again"
    return f"{scheme}; {kind} does not keep its codes: {what}"


def _nearest(
    source: Dequantized, members: Sequence[str], scheme: Scheme, kinds: Sequence[str]
) -> Route:
    """Return the first of KINDS that keeps every value, or else how near the last of them is."""
    found = Route("", np.inf)
    for kind in kinds:
        last = kind == kinds[-1]
        found = Route(kind, _error(source, members, scheme, kind, whole=last))
        if found.exact:
            break
    return found


def _error(
    source: Dequantized, members: Sequence[str], scheme: Scheme, kind: str, *, whole: bool
) -> float:
    """Return how far MEMBERS as KIND are from themselves; unless WHOLE any error will do."""
    worst = 0.0
    for name in members:
        for parts in _scales(source, name):
            worst = max(worst, route(parts, scheme, kind).error)
            if worst == np.inf or (worst and not whole):
                return np.inf
    return worst


def _scales(source: Dequantized, name: str) -> Iterator[dict[str, Array]]:
    """Yield what the codes of the weight NAME are multiplied by and added to, some at a time."""
    names = {part: full for part, full in source.part_names(name).items() if part != "weight"}
    arrays = {part: source.raw.read(full).reshape(-1) for part, full in names.items()}
    size = arrays["scales"].size
    for start, stop in pairwise([0, *range(FIRST, size, PIECE), size]):
        yield {
            part: array[start:stop] if array.size == size else array
            for part, array in arrays.items()
        }
