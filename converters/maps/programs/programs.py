"""Programs: how a tensor that no layout explains is computed, as MLX's primitives in turn.

::

    a = FromFP8(#0) bfloat16;
    b = Reshape(#1) [3 1];
    c = Broadcast(b) [3 4];
    $0 = Multiply(a, c)

``#0`` is the first source, ``$0`` the first target, and every other name stands for a result in
between. An operation has the name under which ``mx.export_function`` reports it, its operands in
brackets, and its arguments in MLX's order: numbers, ``true`` and ``false``, dtypes, lists in square
brackets. A replay gives the bits of the function that was traced; there is no way back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import isfinite
from typing import Any, Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints.base import Header
from ...common.dtypes import NUMPY
from ...values import Array
from ..execution.exchange import UNSIGNED, code, mlx_dtype, numpy_name, to_mlx, to_numpy
from ..notation.scanner import DTYPES, IDENTIFIER, Scanner
from .primitives import PRIMITIVES, Argument

OPERAND: Final = re.compile(r"#[0-9]+|\$[0-9]+|[^\W\d]\w*")
FLAGS: Final = {"true": True, "false": False}
UNUSED: Final = "_"  # the name of a result that nothing reads
LONGEST: Final = 120  # of a step quoted in an error


@dataclass(frozen=True)
class Step:
    """One operation of a program.

    Attributes:
        results: what its results are called; ``$0`` is the first target of the rule, ``_`` is for
            one that is not used.
        operation: MLX's name of the primitive.
        operands: the arrays that it takes; ``#0`` is the first source of the rule.
        arguments: everything else, in MLX's order; a dtype is its numpy name.
    """

    results: tuple[str, ...]
    operation: str
    operands: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()

    def __str__(self) -> str:
        call = f"{self.operation}({', '.join(self.operands)})"
        return f"{', '.join(self.results)} = {' '.join([call, *map(_shown, self.arguments)])}"


@dataclass(frozen=True)
class Program:
    """Steps in turn, from sources to targets.

    >>> program = Program.parse("a = FromFP8(#0) bfloat16; $0 = Reshape(a) [2 3]")
    >>> print(program)
    a = FromFP8(#0) bfloat16; $0 = Reshape(a) [2 3]
    """

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    @cached_property
    def made(self) -> dict[tuple[Header, ...], tuple[Header, ...]]:
        """What ``results`` has found out so far; layer after layer asks the same."""
        return {}

    @classmethod
    def parse(cls, text: str) -> Program:
        """Return the program that TEXT writes down, on one line or on several.

        Raises:
            MapSyntaxError: it is none.
        """
        scanner = Scanner(text.replace("\n", "\n "), "<program>")
        program = read_program(scanner)
        if scanner.text[scanner.at :].strip():
            scanner.fail(f"expected `;` or the end of the program, found {scanner.ahead()}")
        return program

    def flaw(self, sources: int, targets: int) -> str | None:
        """Say why this is no way from so many SOURCES to so many TARGETS; ``None`` if it is."""
        return next(_flaws(self, sources, targets), None)


def _shown(argument: Argument) -> str:
    if isinstance(argument, tuple):
        return f"[{' '.join(map(repr, argument))}]"
    return str(argument).lower() if isinstance(argument, bool | str) else repr(argument)


def read_program(scanner: Scanner) -> Program:
    """Read the steps of a program, which stand next, and the ``;`` between them."""
    steps = [_read_step(scanner)]
    while scanner.take(";"):
        steps.append(_read_step(scanner))
    return Program(tuple(steps))


def _read_step(scanner: Scanner) -> Step:
    results = [scanner.expect(OPERAND, "a name or `$0`")]
    while scanner.take(","):
        results.append(scanner.expect(OPERAND, "a name or `$0`"))
    scanner.expect("=", "`=`")
    scanner.skip()
    at = scanner.at
    step = Step(
        tuple(results),
        scanner.expect(IDENTIFIER, "an operation"),
        _read_operands(scanner),
        tuple(_read_arguments(scanner)),
    )
    if flaw := _step_flaw(step):
        scanner.fail(flaw, at)
    return step


def _read_operands(scanner: Scanner) -> tuple[str, ...]:
    scanner.expect("(", "`(`")
    found: list[str] = []
    while not scanner.take(")"):
        if found:
            scanner.expect(",", "`,` or `)`")
        found.append(scanner.expect(OPERAND, "a name, `#0` or `$0`"))
    return tuple(found)


def _read_arguments(scanner: Scanner) -> Iterator[Argument]:
    while True:
        number = scanner.number()
        if number is not None:
            yield number
        elif scanner.take("["):
            yield tuple(_read_numbers(scanner))
        else:
            start = scanner.at
            word = scanner.take(IDENTIFIER) or ""
            if word not in FLAGS and word not in DTYPES:
                scanner.at = start
                return
            yield FLAGS.get(word, word)


def _read_numbers(scanner: Scanner) -> Iterator[int | float]:
    while not scanner.take("]"):
        number = scanner.number()
        if number is None:
            scanner.fail(f"expected a number or `]`, found {scanner.ahead()}")
        yield number


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and isfinite(value))


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple)


CHECKS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "i": ("an integer", lambda value: type(value) is int),
    "n": ("a number", _is_number),
    "b": ("`true` or `false`", lambda value: isinstance(value, bool)),
    "d": ("a dtype", lambda value: value in DTYPES),
    "l": ("integers in brackets", lambda v: _is_list(v) and all(type(i) is int for i in v)),
    "v": ("numbers in brackets", lambda v: _is_list(v) and all(map(_is_number, v))),
}


def _step_flaw(step: Step) -> str | None:
    """Say why STEP cannot run, whatever stands before it; ``None`` if it can."""
    primitive = PRIMITIVES.get(step.operation)
    if primitive is None:
        near = get_close_matches(step.operation, PRIMITIVES, 1)
        hint = f"; nearest: {near[0]}" if near else ""
        return f"a program has no operation `{step.operation}`{hint}"
    if primitive.operands is None and not step.operands:
        return f"{step.operation} takes one operand or more"
    if primitive.operands not in (None, len(step.operands)):
        return f"{step.operation} takes {primitive.operands} operands, not {len(step.operands)}"
    kinds = primitive.arguments
    if len(kinds) != len(step.arguments):
        expected = ", ".join(CHECKS[kind][0] for kind in kinds) or "no arguments"
        return f"{step.operation} takes {expected}, not {len(step.arguments)} arguments"
    for kind, argument in zip(kinds, step.arguments, strict=True):
        if not CHECKS[kind][1](argument):
            return f"{step.operation} takes {CHECKS[kind][0]} where it has {_shown(argument)}"
    return None


def _flaws(program: Program, sources: int, targets: int) -> Iterator[str]:
    """Yield what does not hold together in PROGRAM."""
    known = {f"#{at}" for at in range(sources)}
    unread = set(known)
    for step in program.steps:
        if flaw := _step_flaw(step):
            yield flaw
        yield from (f"`{_quoted(step)}`: {n} is not known" for n in step.operands if n not in known)
        unread -= set(step.operands)
        for name in step.results:
            if name in known or name.startswith("#"):
                yield f"`{_quoted(step)}`: {name} is made twice"
            elif not OPERAND.fullmatch(name):
                yield f"`{_quoted(step)}`: {name} is no name"
            known |= {name} - {UNUSED}
    yield from (f"the program does not use {name}" for name in sorted(unread))
    wanted = {f"${at}" for at in range(targets)}
    made = {name for name in known if name.startswith("$")}
    yield from (f"the program does not make {name}" for name in sorted(wanted - made))
    yield from (f"the program makes {name}, which the rule lacks" for name in sorted(made - wanted))


def _quoted(step: Step) -> str:
    text = str(step)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def replay(program: Program, sources: Sequence[Any]) -> list[Any]:
    """Return the targets that PROGRAM makes of MLX arrays; nothing is evaluated.

    Raises:
        BadInputError: MLX refuses a step; says which one and why.
    """
    known = played(program.steps, {f"#{at}": source for at, source in enumerate(sources)})
    targets = {int(name[1:]): array for name, array in known.items() if name.startswith("$")}
    return [targets[at] for at in sorted(targets)]


def played(steps: Sequence[Step], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the MLX arrays KNOWN by name, and those that STEPS make of them; none is evaluated.

    Raises:
        BadInputError: MLX refuses a step; says which one and why.
    """
    import mlx.core as mx

    known = dict(known)
    for step in steps:
        operands = [known[name] for name in step.operands]
        try:
            made = PRIMITIVES[step.operation].run(mx, operands, step.arguments)
            made = [made] if isinstance(made, mx.array) else list(made)
            known |= dict(zip(step.results, made, strict=True))
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            raise BadInputError(f"`{_quoted(step)}` cannot run: {reason}") from None
    return known


def run(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """Return the targets that PROGRAM makes of ARRAYS, the sources in order.

    A float8 tensor is uint8 to the program, as it is in MLX.

    Raises:
        BadInputError: MLX refuses a step; says which one and why.

    >>> import numpy as np
    >>> program = Program.parse("a = Constant() float32 [] [0.5]; $0 = Multiply(#0, a)")
    >>> run(program, [np.array([3, -0.0], np.float32)])
    [array([ 1.5, -0. ], dtype=float32)]
    """
    return [to_numpy(array) for array in replay(program, [to_mlx(array) for array in arrays])]


def results(program: Program, headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return dtypes and shapes of the targets that PROGRAM makes of tensors with these HEADERS.

    Nothing is evaluated.

    Raises:
        BadInputError: MLX refuses a step; says which one and why.

    >>> results(Program.parse("$0 = View(#0) uint32"), (Header("U8", (3, 8)),))
    (Header(dtype='U32', shape=(3, 2)),)
    """
    import mlx.core as mx

    if headers not in program.made:
        sources = [mx.zeros(h.shape, mlx_dtype(NUMPY[h.dtype].name)) for h in headers]
        targets = replay(program, sources)
        program.made[headers] = tuple(Header(code(t.dtype), tuple(t.shape)) for t in targets)
    return program.made[headers]


def step_of(record: Mapping[str, Any], names: Mapping[Any, str]) -> Step:
    """Return the step that a RECORD of ``mx.export_function`` reports.

    Args:
        record: of the type ``primitive``.
        names: what the arrays of the trace are called in the program, by MLX's id; a result
            without a name is ``_``.

    Raises:
        UnsupportedError: a program has no such operation, or not with these arguments.

    >>> import mlx.core as mx
    >>> records = []
    >>> mx.export_function(records.append, lambda x: x.T, mx.zeros((2, 3)))
    >>> [record] = [r for r in records if r["type"] == "primitive"]
    >>> print(step_of(record, {record["inputs"][0][0]: "#0", record["outputs"][0][0]: "$0"}))
    $0 = Transpose(#0) [1 0]
    """
    arguments = [_argument(value) for value in record["arguments"]]
    shape, dtype = record["outputs"][0][1:]
    if record["name"] == "Reshape":  # MLX reports a -1 as it was written
        arguments = [tuple(shape)]
    elif record["name"] == "Arange":  # MLX reports the bounds only
        arguments.append(numpy_name(dtype))
    step = Step(
        tuple(names.get(array[0], UNUSED) for array in record["outputs"]),
        record["name"],
        tuple(names[array[0]] for array in record["inputs"]),
        tuple(arguments),
    )
    if flaw := _step_flaw(step):
        raise UnsupportedError(f"`{_quoted(step)}`: {flaw}")
    return step


def _argument(value: Any) -> Argument:
    if isinstance(value, tuple | list):
        return tuple(value)
    return value if isinstance(value, bool | int | float | str) else numpy_name(value)


def constant_steps(name: str, array: Any) -> list[Step]:
    """Return steps that make NAME the ARRAY, a small one of MLX or numpy, bit for bit.

    >>> import numpy as np
    >>> print(*constant_steps("a", np.array([np.inf, 1], np.float32)), sep="; ")
    a_bits = Constant() uint32 [2] [2139095040 1065353216]; a = View(a_bits) float32
    """
    values = array if isinstance(array, np.ndarray) else to_numpy(array)
    dtype, shape = values.dtype.name, tuple(values.shape)
    flat = values.reshape(-1)
    kind = int if values.dtype.kind in "biu" else float
    numbers = tuple(kind(value) for value in flat)
    if all(map(isfinite, numbers)):
        return [Step((name,), "Constant", (), (dtype, shape, numbers))]
    unsigned = UNSIGNED[values.dtype.itemsize]
    bits = tuple(int(value) for value in flat.view(unsigned))
    whole = Step((f"{name}_bits",), "Constant", (), (unsigned.__name__, shape, bits))
    return [whole, Step((name,), "View", (f"{name}_bits",), (dtype,))]
