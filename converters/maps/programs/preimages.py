"""The way back through a program that only adds, subtracts, multiplies or divides by constants.

Such a program takes each number by itself, so what a number was is sought by itself: the one that is
nearest to what exact arithmetic says, and of which the program makes the very bits that are there.
Rounding leaves some numbers without one; then the one that comes nearest is taken, and counted.
One or two operations by constants are undone whenever they can be; after more of them a number that
is further away than the few that are tried may be overlooked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...checkpoints.base import Header
from ...common.dtypes import CODE, NUMPY, neighbours
from ...values import Array
from ..execution.exchange import UNSIGNED, to_numpy
from .programs import Program, Step, played, results, run

Doubles: TypeAlias = npt.NDArray[np.float64]
Undo: TypeAlias = Callable[[Doubles, Any], Doubles]

SOURCE, TARGET = "#0", "$0"
FLOATS: Final = ("F32", "BF16", "F16")
REACH: Final = 2  # last bits that are looked at beside what exact arithmetic says, at least
KEPT: Final = frozenset({"Copy", "Contiguous", "StopGradient", "AsType"})  # the numbers stay
# What undoes an operation whose first operand is the number, and whose second one is.
UNDONE: Final[dict[str, tuple[Undo, Undo]]] = {
    "Add": (lambda y, c: y - c, lambda y, c: y - c),
    "Subtract": (lambda y, c: y + c, lambda y, c: c - y),
    "Multiply": (lambda y, c: y / c, lambda y, c: y / c),
    "Divide": (lambda y, c: y * c, lambda y, c: c / y),
}
# What takes each number by itself, or moves it.
FOLLOWED: Final = frozenset({*KEPT, *UNDONE, "Negative", "Transpose"})
SCALING: Final = frozenset({"Multiply", "Divide"})


class Link(NamedTuple):
    """A step on the way of the source to the target.

    Attributes:
        step: the step.
        at: which of its operands is on the way.
        constant: the other operand, ``None`` where there is none.
    """

    step: Step
    at: int
    constant: Array | None


class Preimage(NamedTuple):
    """What a program made an array of, as far as can be told.

    Attributes:
        array: the source.
        missed: how many of its numbers do not lead to the very bits of the target.
    """

    array: Array
    missed: int


@lru_cache(maxsize=256)
def way(program: Program) -> tuple[Link, ...] | None:
    """Return how PROGRAM leads from its source to its target; ``None`` if it cannot be undone.

    >>> [link.step.operation for link in way(Program.parse(
    ...     "a = Constant() float32 [] [3.0]; b = Negative(#0); $0 = Multiply(a, b)"))]
    ['Negative', 'Multiply']
    >>> way(Program.parse("a = Square(#0); $0 = Add(a, #0)")) is None
    True
    """
    path = line(program)
    if path is None:
        return None
    aside = [step for step in program.steps if step not in path]
    known = played(aside, {})
    makers = {name: step for step in aside for name in step.results}
    links = [Link(step, at, constant(step, at, known, makers)) for step, at in path.items()]
    return tuple(links) if all(map(loses_nothing, links)) else None


def line(program: Program) -> dict[Step, int] | None:
    """Return the steps from source to target with the operand that is on the way, if it is a line."""
    read = Counter(name for step in program.steps for name in step.operands)
    at, path = SOURCE, dict[Step, int]()
    for step in program.steps:
        if any(name.startswith("#") and name != SOURCE for name in step.operands):
            return None
        if at in step.operands:
            if read[at] > 1 or len(step.results) > 1 or step.operation not in FOLLOWED:
                return None
            path[step] = step.operands.index(at)
            [at] = step.results
    return path if at == TARGET and len(path) else None


def constant(
    step: Step, at: int, known: Mapping[str, Any], makers: Mapping[str, Step]
) -> Array | None:
    """Return the operand of STEP that is not on the way, before it was broadcast."""
    if len(step.operands) == 1:
        return None
    name = step.operands[1 - at]
    while makers[name].operation == "Broadcast":
        [name] = makers[name].operands
    return to_numpy(known[name])


def loses_nothing(link: Link) -> bool:
    """Say whether LINK maps no two numbers to one by design, as a factor of zero does."""
    if link.constant is None:
        kind = link.step.arguments[0] if link.step.operation == "AsType" else "float32"
        return str(kind) in {NUMPY[code].name for code in FLOATS}
    values = link.constant.astype(np.float64)
    usable = np.isfinite(values) & ((values != 0) | (link.step.operation not in SCALING))
    return link.constant.dtype.kind != "c" and bool(usable.all())


def source_header(program: Program, target: Header) -> Header | None:
    """Return the header of the source that PROGRAM makes TARGET of, in the dtype of TARGET if it can.

    >>> program = Program.parse("a = Constant() float32 [] [3.0]; $0 = Multiply(#0, a)")
    >>> source_header(program, Header("F32", (2, 3)))
    Header(dtype='F32', shape=(2, 3))
    """
    links = way(program)
    if links is None or target.dtype not in FLOATS:
        return None
    shape = target.shape
    for link in reversed(links):
        if link.step.operation == "Transpose":
            shape = tuple(shape[axis] for axis in back(link.step))
    for dtype in (target.dtype, *FLOATS):
        if results(program, (Header(dtype, shape),)) == (target,):
            return Header(dtype, shape)
    return None


def back(step: Step) -> list[int]:
    """Return the axes that undo those of a Transpose."""
    return [int(axis) for axis in np.argsort(np.array(step.arguments[0]))]


def preimage(program: Program, target: Array, dtype: np.dtype[Any]) -> Preimage:
    """Return the array of DTYPE of which PROGRAM makes TARGET, bit for bit where there is one.

    >>> program = Program.parse("a = Constant() float32 [] [3.0]; $0 = Multiply(#0, a)")
    >>> preimage(program, np.array([4.5, 9], np.float32), np.dtype(np.float32))
    Preimage(array=array([1.5, 3. ], dtype=float32), missed=0)
    """
    with np.errstate(all="ignore"):
        exact = undone(program, target)
        found = exact.astype(dtype)
        trial = Trial(program, target)
        hit, gap = trial(found)
        if not hit.all():
            for other in neighbours(found.copy(), exact, max(REACH, roundings(program) + 1)):
                now, distance = trial(other)
                better = ~hit & (now | (distance < gap))
                found = np.where(better, other, found)
                gap, hit = np.where(better, distance, gap), hit | now
                if hit.all():
                    break
    return Preimage(found, int(hit.size - np.count_nonzero(hit)))


def undone(program: Program, target: Array) -> Doubles:
    """Return what exact arithmetic, in float64, says that PROGRAM made TARGET of."""
    numbers: Doubles = target.astype(np.float64)
    for link in reversed(way(program) or ()):
        step = link.step
        if link.constant is not None:
            numbers = UNDONE[step.operation][link.at](numbers, link.constant.astype(np.float64))
        elif step.operation == "Negative":
            numbers = -numbers
        elif step.operation == "Transpose":
            numbers = numbers.transpose(back(step))
    return np.ascontiguousarray(numbers)


def roundings(program: Program) -> int:
    """Return how often PROGRAM rounds a number."""
    return sum(link.step.operation in {*UNDONE, "AsType"} for link in way(program) or ())


def leads_as_near(program: Program, source: Array, target: Array, *, back: bool) -> bool:
    """Return whether PROGRAM makes the very bits of TARGET out of SOURCE.

    On the way BACK, where SOURCE was sought for a given TARGET, it is enough that what ``preimage``
    gives comes no nearer.
    """
    head, made = (Header(CODE[array.dtype], array.shape) for array in (source, target))
    if results(program, (head,)) != (made,):
        return False
    with np.errstate(all="ignore"):
        trial = Trial(program, target)
        hit, gap = trial(source)
        if hit.all() or not back:
            return bool(hit.all())
        _, least = trial(preimage(program, target, source.dtype).array)
    return bool((hit | (gap <= least)).all())


class Trial:
    """Says which numbers lead to the bits of TARGET, and how far from it the others lead."""

    def __init__(self, program: Program, target: Array) -> None:
        self.program, self.target = program, target
        self.turn = [
            back(link.step) for link in way(program) or () if link.step.operation == "Transpose"
        ]

    def __call__(self, source: Array) -> tuple[npt.NDArray[np.bool_], Doubles]:
        """Return both for each number of SOURCE."""
        [made] = run(self.program, [source])
        same = bits(made) == bits(self.target)
        gap = np.abs(made.astype(np.float64) - self.target.astype(np.float64))
        gap = np.where(np.isnan(gap), np.inf, gap)
        return self.as_source(same), self.as_source(gap)

    def as_source(self, array: Any) -> Any:
        """Return ARRAY, which lies as the target does, as the source lies."""
        for axes in reversed(self.turn):
            array = array.transpose(axes)
        return array


def bits(array: Array) -> npt.NDArray[Any]:
    """Return the bits of ARRAY as whole numbers."""
    return np.ascontiguousarray(array).view(UNSIGNED[array.dtype.itemsize])
