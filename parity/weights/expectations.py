"""What a map says of a candidate's weights, compared with what their values say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from .orders import shorten
from .reference_index import Explanation

Axes = tuple[int, ...]
# By these kinds no value says where a tensor comes from.
NOT_BY_VALUE: Final = frozenset({"unexplained", "inconclusive", "missing", "unused", "zeroed"})


class Expectation(NamedTuple):
    """What a map says of one candidate tensor.

    Attributes:
        sources: the reference tensors it is made of, in their order in it.
        axes: the candidate is the one source transposed by these axes; ``None`` as it lies.
        changed: a factor, an offset or packed bits make it another value than its source.
        computed: a program makes it, which values cannot show.
        ordered: whether the order of the sources is that in which they lie in it.
        shared: other candidate tensors are made of the same sources, so this one may have some alone.
        reordered: rows come in another order within what it is joined of, or cut from.
        holds: says whether the values are what the program makes, where it can be run here.
    """

    sources: tuple[str, ...]
    axes: Axes | None = None
    changed: bool = False
    computed: bool = False
    ordered: bool = True
    shared: bool = False
    reordered: bool = False
    holds: Callable[[], bool] | None = None


Expected = Expectation | tuple[str, Axes | None] | str


def as_expectation(given: Expected, found: Axes | None = None) -> Expectation:
    """Return GIVEN as an Expectation; a name alone says nothing of the axes, so FOUND are right.

    >>> as_expectation(("w", (1, 0)))[:2]
    (('w',), (1, 0))
    """
    if isinstance(given, Expectation):
        return given
    source, axes = (given, found) if isinstance(given, str) else given
    return Expectation((source,), axes)


def names_that(expected: Mapping[str, Expected], are: str) -> frozenset[str]:
    """Return the candidate's tensors that ARE, such as ``changed``, by what a map says.

    >>> names_that({"w": Expectation(("w",), changed=True), "v": "v"}, "changed")
    frozenset({'w'})
    """
    return frozenset(name for name, it in expected.items() if getattr(as_expectation(it), are))


def disagreements(
    explanations: Sequence[Explanation], expected: Mapping[str, Expected]
) -> list[str]:
    """Return where the values contradict what a map says.

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
            expectation = as_expectation(expected[it.name], it.axes)
            problem = _wrong_source(it, expectation) or _wrong_axes(it, expectation)
            problems += [problem] if problem else []
    return problems


def _wrong_source(it: Explanation, expectation: Expectation) -> str | None:
    if not it.parts:
        right = it.source in expectation.sources or bool({*it.also} & {*expectation.sources})
    elif expectation.shared:
        right = {*it.parts} <= {*expectation.sources}
    elif expectation.ordered:
        pairs = zip(it.parts, expectation.sources, strict=False)
        alike = all(one == other or other in it.also for one, other in pairs)
        right = alike and len(it.parts) == len(expectation.sources)
    else:
        right = {*expectation.sources} <= {*it.parts, *it.also}
    found = it.parts or (str(it.source),)
    if right:
        return None
    wanted = shorten(expectation.sources)
    return f"{it.name} carries the values of {shorten(found)}, the map says {wanted}"


def _wrong_axes(it: Explanation, expectation: Expectation) -> str | None:
    if len(expectation.sources) > 1 or it.parts or it.kind in {"shuffled", "split", "cropped"}:
        return None
    found, wanted = (_essential(order, it.shape) for order in (it.axes, expectation.axes))
    if found == wanted or it.constant:
        return None
    as_found = f"transposed by {it.axes}" if found else "as it lies"
    as_expected = f"transposed by {expectation.axes}" if wanted else "as it lies"
    fault = "left untransposed" if not found else "transposed wrongly"
    return f"{it.name} equals {it.source} {as_found}, the map says {as_expected}: {fault}"


def _essential(axes: Axes | None, shape: tuple[int, ...]) -> Axes | None:
    # Moving an axis of size 1 moves nothing: compare the order of the other axes among themselves.
    if axes is None or len(axes) != len(shape):
        return None
    kept = [axis for position, axis in enumerate(axes) if shape[position] != 1]
    return tuple(sorted(kept).index(axis) for axis in kept) if kept != sorted(kept) else None


def with_programs(
    explanations: Sequence[Explanation], expected: Mapping[str, Expected]
) -> list[Explanation]:
    """Return EXPLANATIONS, inconclusive where a program makes a tensor or reads one.

    What a program makes of fp8 or packed weights has other values than they; its outputs judge it.
    Where the program can be run here, what it makes is an explanation.
    """
    expectations = {name: as_expectation(it) for name, it in expected.items()}
    made = {name: it.sources for name, it in expectations.items() if it.computed}
    used = {source for sources in made.values() for source in sources}
    result = []
    for it in explanations:
        if not it.ok and it.kind != "missing" and it.name in made:
            holds = expectations[it.name].holds
            ok = holds is not None and holds()
            kind = "computed" if ok else "inconclusive"
            detail = f"a program of the map makes it of {shorten(made[it.name])}"
            result.append(it._replace(source=None, kind=kind, detail=detail, ok=ok))
        elif it.kind == "missing" and it.name in used:
            detail = "a program of the map reads it"
            result.append(it._replace(kind="inconclusive", detail=detail))
        else:
            result.append(it)
    return result
