"""Blocks: the submodules that a model runs one after another, and which of them are alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ....errors import UnsupportedError
from ...common.memory import pass_on_shortage
from ...common.users_code import described
from ...values import Array

PLAIN: Final = (str, bool, int, type(None))
Given = Callable[[tuple[int, ...]], Array]  # hidden states (batch, positions, width) of a shape
Traits = Mapping[str, Any]
Change = contextlib.AbstractContextManager[None]


class Found(Exception):  # noqa: N818  # no error: it carries a block's output past what follows
    """What a block returned, taken out of the forward that was on its way."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def output_of(number: int, changes: Iterable[Change], run: Callable[[], object]) -> Any:
    """Return what the block NUMBER returns, taken out by ``Found`` while RUN runs under CHANGES.

    Raises:
        UnsupportedError: it raises something else, or never gets there.
    """
    try:
        with contextlib.ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            run()
    except Found as found:
        return found.value
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(f"block {number} does not run alone: {described(error)}") from error
    raise UnsupportedError(f"block {number} was never run")


def outermost(lists: Iterable[tuple[str, Any]], count: int) -> Sequence[Any]:
    """Return the one list of COUNT submodules among LISTS, by path, that lies in no other.

    Raises:
        UnsupportedError: there is none, or more than one.
    """
    found: dict[str, Any] = {}
    for path, row in sorted(lists, key=lambda it: len(it[0])):
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if len(row) == count and not inside:
            found[path] = row
    if len(found) != 1:
        places = ", ".join(found) or "none"
        raise UnsupportedError(f"no one list of {count} blocks is to be found in it ({places})")
    [blocks] = found.values()
    return list(blocks)


def traits(block: Any) -> dict[str, Any]:
    """Return the classes of BLOCK, a module of torch or MLX, and of all in it, and their settings."""
    found: dict[str, Any] = {}
    for path, part in block.named_modules():
        found[path] = type(part).__name__
        for name, value in vars(part).items():
            if isinstance(value, PLAIN) and not name.startswith("_"):
                found[f"{path}.{name}"] = value
    return found


def counts(values: Sequence[Any]) -> bool:
    """Say whether VALUES only number the blocks.

    >>> counts([0, 1, 2]), counts([1, 2]), counts([True, False]), counts([4, 4])
    (True, True, False, False)
    """
    if not all(type(it) is int for it in values):
        return False
    return len({it - place for place, it in enumerate(values)}) == 1


def one_of_each(*sides: Sequence[Traits]) -> list[int]:
    """Return the number of the first block of every kind; alike are those with the same traits on all SIDES.

    >>> one_of_each([{"window": 8, "n": 0}, {"window": None, "n": 1}, {"window": 8, "n": 2}])
    [0, 1]
    """
    rows = [repr([kept(side, place) for side in sides]) for place in range(len(sides[0]))]
    return [place for place, row in enumerate(rows) if row not in rows[:place]]


def kept(side: Sequence[Traits], place: int) -> list[tuple[str, Any]]:
    """Return the traits of the block at PLACE of SIDE, without those that only number the blocks."""
    return sorted(
        (name, value)
        for name, value in side[place].items()
        if len(side) == 1 or not counts([block.get(name) for block in side])
    )
