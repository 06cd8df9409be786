"""Which tensors of torch a candidate may lack: buffers that a model computes, and tied weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...common.dtypes import FLOATS
from .families import HOLE, NUMBER
from .sides import Side
from .tokens import is_recomputed
from .writing import CAPTURES


def drops(left: Side) -> Iterator[dict[str, str]]:
    """Yield tensors of torch that a candidate may lack, each with its rule: ever more of them."""
    found = {
        name: f"{name} -> recomputed  # guess: an integer buffer"
        for name, header in left.headers.items()
        if header.dtype not in FLOATS
    }
    yield found
    made = {
        name: f"{name} -> recomputed  # guess: by its name"
        for name in left.floats()
        if is_recomputed(name)
    }
    if made:
        yield found | made
    if tied := ties(left):
        yield found | made | tied


def folded_rules(rules: Mapping[str, str]) -> list[str]:
    """Return RULES, by the name they drop, those that differ by indices folded into one.

    >>> folded_rules({f"h.{n}.count": f"h.{n}.count -> recomputed" for n in range(2)})
    ['h.{n}.count -> recomputed']
    """
    groups: dict[str, list[str]] = {}
    for rule in rules.values():
        groups.setdefault(NUMBER.sub(HOLE, rule), []).append(rule)
    return [rule for group in groups.values() for rule in folded_group(group)]


def folded_group(group: Sequence[str]) -> list[str]:
    """Return one rule for a GROUP that differs in numbers, or the group where a tie is among it."""
    columns = list(zip(*(NUMBER.findall(rule) for rule in group), strict=True))
    varying = [len(set(column)) > 1 for column in columns]
    if " == " in group[0] or sum(varying) > len(CAPTURES):
        return list(group)
    captures = iter(CAPTURES)
    values = [f"{{{next(captures)}}}" if v else c[0] for v, c in zip(varying, columns, strict=True)]
    rest = iter(values)
    return [NUMBER.sub(lambda _: next(rest), group[0])]


def ties(left: Side) -> dict[str, str]:
    """Return the tensors of torch that equal an earlier one, as ties."""
    if left.read is None:
        return {}
    first: dict[tuple[tuple[int, ...], bytes], str] = {}
    found = {}
    for name, shape in left.floats().items():
        if len(shape) > 1:
            known = first.setdefault((shape, left.read(name).tobytes()), name)
            if known != name:
                found[name] = f"{name} == {known}  # by value"
    return found
