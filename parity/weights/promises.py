"""What a map promised of a candidate's weights, held against what their values say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from .book import Explanation
from .orders import shorten

Axes = tuple[int, ...]
# By these kinds no value says where a tensor comes from.
NOT_BY_VALUE: Final = frozenset({"unexplained", "untold", "missing", "unused", "zeroed"})


class Promise(NamedTuple):
    """What a map says of one candidate tensor.

    Attributes:
        sources: the reference tensors it is made of, in their order in it.
        axes: the candidate is the one source transposed by these axes; ``None`` as it lies.
        changed: a factor, an offset or packed bits make it another value than its source.
        computed: a program makes it, which values cannot show.
        ordered: whether the order of the sources is that in which they lie in it.
        holds: says whether the values are what the program makes, where it can be run here.
    """

    sources: tuple[str, ...]
    axes: Axes | None = None
    changed: bool = False
    computed: bool = False
    ordered: bool = True
    holds: Callable[[], bool] | None = None


Promised = Promise | tuple[str, Axes | None] | str


def as_promise(given: Promised, found: Axes | None = None) -> Promise:
    """Return GIVEN as a Promise; a name alone promises nothing of the axes, so FOUND are right.

    >>> as_promise(("w", (1, 0)))[:2]
    (('w',), (1, 0))
    """
    if isinstance(given, Promise):
        return given
    return Promise((given,), found) if isinstance(given, str) else Promise((given[0],), given[1])


def changed_names(expected: Mapping[str, Promised]) -> frozenset[str]:
    """Return the candidate's tensors that a map promises to change in value."""
    return frozenset(name for name, it in expected.items() if as_promise(it).changed)


def disagreements(
    explanations: Sequence[Explanation], expected: Mapping[str, Promised]
) -> list[str]:
    """Return where the values contradict what a map promised.

    Tensors that no value explains are left aside: they fail by themselves.

    Args:
        explanations: what ``fingerprints.explain`` returned.
        expected: candidate name -> what a map says of it; a pair is a source and a permutation.

    >>> it = Explanation("conv.weight", "conv.weight", "equal", "", ok=True, shape=(3, 3))
    >>> disagreements([it], {"conv.weight": ("conv.weight", (1, 0))})
    ['conv.weight equals conv.weight as it lies, the map says transposed by (1, 0): left untransposed']
    """
    problems = []
    for it in explanations:
        if it.name in expected and it.source is not None and it.kind not in NOT_BY_VALUE:
            promise = as_promise(expected[it.name], it.axes)
            problem = _wrong_source(it, promise) or _wrong_axes(it, promise)
            problems += [problem] if problem else []
    return problems


def _wrong_source(it: Explanation, promise: Promise) -> str | None:
    if not it.parts:
        right = it.source in promise.sources or bool({*it.also} & {*promise.sources})
    elif promise.ordered:
        pairs = zip(it.parts, promise.sources, strict=False)
        alike = all(one == other or other in it.also for one, other in pairs)
        right = alike and len(it.parts) == len(promise.sources)
    else:
        right = {*promise.sources} <= {*it.parts, *it.also}
    found = it.parts or (str(it.source),)
    said = f"the map says {shorten(promise.sources)}"
    return None if right else f"{it.name} carries the values of {shorten(found)}, {said}"


def _wrong_axes(it: Explanation, promise: Promise) -> str | None:
    if len(promise.sources) > 1 or it.parts or it.kind in {"shuffled", "split", "cropped"}:
        return None
    found, wanted = (_essential(order, it.shape) for order in (it.axes, promise.axes))
    if found == wanted or it.constant:
        return None
    as_found = f"transposed by {it.axes}" if found else "as it lies"
    as_promised = f"transposed by {promise.axes}" if wanted else "as it lies"
    fault = "left untransposed" if not found else "transposed wrongly"
    return f"{it.name} equals {it.source} {as_found}, the map says {as_promised}: {fault}"


def _essential(axes: Axes | None, shape: tuple[int, ...]) -> Axes | None:
    # Moving an axis of size 1 moves nothing: compare the order of the other axes among themselves.
    if axes is None or len(axes) != len(shape):
        return None
    kept = [axis for position, axis in enumerate(axes) if shape[position] != 1]
    return tuple(sorted(kept).index(axis) for axis in kept) if kept != sorted(kept) else None


def unexplainable(
    explanations: Sequence[Explanation], expected: Mapping[str, Promised]
) -> list[Explanation]:
    """Return EXPLANATIONS with those left open that a program's result, or its sources, cannot have.

    What a program makes of fp8 or packed weights has other values than they; its outputs judge it.
    Where the program can be run here, what it makes is an explanation.
    """
    promises = {name: as_promise(it) for name, it in expected.items()}
    made = {name: it.sources for name, it in promises.items() if it.computed}
    used = {source for sources in made.values() for source in sources}
    told = []
    for it in explanations:
        if not it.ok and it.kind != "missing" and it.name in made:
            detail = f"a program of the map makes it of {shorten(made[it.name])}"
            holds = promises[it.name].holds
            if holds and holds():
                told.append(it._replace(source=None, kind="computed", detail=detail, ok=True))
                continue
            told.append(it._replace(source=None, kind="untold", detail=detail))
        elif it.kind == "missing" and it.name in used:
            told.append(it._replace(kind="untold", detail="a program of the map reads it"))
        else:
            told.append(it)
    return told
