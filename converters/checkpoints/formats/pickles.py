"""Pickles read as data: a machine for what ``torch.save`` writes. It imports and calls nothing.

PyTorch's own reader of weights allocates what a pickle asks for, such as ``bytearray(1 << 42)``.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, NamedTuple

from .signatures import takes

MOST_BYTES: Final = 64 << 20  # of a pickle; that of a checkpoint takes about 150 for a tensor
MOST_STEPS: Final = 5_000_000  # some 40 for a tensor
_SCALARS: Final = (str, int, float, bytes, type(None))
# What PyTorch allows a pickle of weights to name, besides the functions that rebuild tensors.
_HARMLESS: Final = re.compile(
    r"torch\.(_utils\._rebuild_\w+|_tensor\._rebuild_from_type_v2|nn\.parameter\.Parameter"
    r"|serialization\._get_layout|storage\.\w+Storage|((cuda|sparse)\.)?\w*(Storage|Tensor)"
    r"|(b?float|q?u?int|bits|bool|complex|per_)\w*|device|Size)"
    r"|collections\.(OrderedDict|Counter)|_codecs\.encode"
    r"|(__builtin__|builtins)\.(set|bytearray|complex)"
)


class Named(NamedTuple):
    """A class or function that a pickle names."""

    name: str


class Made(NamedTuple):
    """What a function would have made; it was not called."""

    function: str
    arguments: Any


class PickleError(ValueError):
    """A pickle is damaged, or has more in it than a checkpoint's."""


class CodeError(ValueError):
    """A pickle wants code to run; the arguments are the names of it."""


Outside = Callable[[Any], Any]


def _nothing_outside(key: Any) -> Any:  # noqa: ARG001  # no use for one either
    raise PickleError("it names what lies outside of it")


def load(file: IO[bytes], outside: Outside = _nothing_outside) -> Any:
    """Return what the pickle at FILE's position makes, functions left as :class:`Made`.

    OUTSIDE makes what the pickle only names, such as storages.

    Raises:
        PickleError: it is damaged, too long or of another kind.
        CodeError: it names more than tensors are made of.
    """
    machine = _Machine(outside)
    damage: Exception | None = None
    try:
        value = machine.run(file)
    except (ValueError, LookupError) as error:  # LookupError: an empty stack, a missing memo
        damage = error
    if machine.foreign:
        raise CodeError(*sorted(machine.foreign))
    if damage:
        what = str(damage) if isinstance(damage, ValueError) else "its stack is empty"
        raise PickleError(what) from damage
    return value


def is_text(text: str) -> bool:
    """Say whether TEXT has no halves of characters, which no encoding writes.

    >>> is_text("é"), is_text(chr(0xD800))
    (True, False)
    """
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


class Bounded:
    """A file that is never asked for more than it has: a pickle's lengths are what it says."""

    def __init__(self, file: IO[bytes]) -> None:
        begin = file.tell()
        self.tell = file.tell
        self._file, self._end = file, file.seek(0, io.SEEK_END)
        file.seek(begin)

    def read(self, count: int) -> bytes:
        """Return COUNT bytes, or those that are left."""
        return self._file.read(min(count, MOST_BYTES, max(0, self._end - self._file.tell())))

    def readline(self) -> bytes:
        """Return the rest of the line, or as much of it as a pickle may have."""
        return self._file.readline(MOST_BYTES)


def _steps(file: Any) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]:
    return pickletools.genops(file)


class _Machine:
    """The stack, the memo, and what of foreign code was named."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.foreign: set[str] = set()

    def run(self, file: IO[bytes]) -> Any:
        for step, (code, argument, place) in enumerate(_steps(Bounded(file))):
            if code.name == "STOP":
                return self.stack.pop()
            if (place or 0) > MOST_BYTES or step > MOST_STEPS:
                raise PickleError(f"it goes on after {step:,} steps")
            action = _ACTIONS.get(code.name)
            if action is None:
                raise PickleError(f"a checkpoint's has no {code.name}")
            if isinstance(argument, str) and not is_text(argument):
                raise PickleError("a name in it holds half a character")
            action(self, argument)
        raise PickleError("it has no end")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.marks.pop()
        return found

    def mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def put(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]

    def join(self, count: int) -> None:
        if len(self.stack) < count:
            raise PickleError("its stack is empty")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise PickleError("it adds to what is no list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise PickleError("it adds to what is no dictionary")
        target.update(_pairs(zip(items[::2], items[1::2], strict=True)))

    def name(self, name: str) -> None:
        if not _HARMLESS.fullmatch(name):
            self.foreign.add(name)
        self.push(Named(name))

    def stack_name(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("a name is no text")
        self.name(f"{module}.{name}")

    def reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise PickleError("it calls what is no function")
        self.push(_made(function.name, arguments))

    def build(self, _: Any) -> None:
        """Leave out the attributes of a dictionary; nothing else has any that count."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            self.push(Made("attributes", self.stack.pop()))


def _pairs(items: Any) -> dict[Any, Any]:
    """Return ITEMS as a dictionary; its keys are scalars, for others may take for ever to hash."""
    found = {}
    for key, value in items:
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, _SCALARS) for part in parts):
            raise PickleError("a key is no text and no number")
        found[key] = value
    return found


def _made(function: str, arguments: tuple[Any, ...]) -> Any:
    """Return what calling FUNCTION makes: dictionaries and sizes; all else stays described."""
    if function == "collections.OrderedDict":
        items = arguments[0] if arguments else []
        if not isinstance(items, list) or not all(
            isinstance(it, list | tuple) and len(it) == 2 for it in items
        ):
            raise PickleError("a dictionary is made of what are no pairs")
        return _pairs(items)
    if function == "torch.Size" and arguments:
        return arguments[0]
    if not takes(function, arguments):
        raise PickleError(f"it calls {function} with other arguments than torch.save does")
    return Made(function, arguments)


Action = Callable[[_Machine, Any], None]


def _pushing(value: Any) -> Action:
    return lambda machine, _: machine.push(value)


def _joining(count: int) -> Action:
    return lambda machine, _: machine.join(count)


_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
)
_ACTIONS: Final[Mapping[str, Action]] = {
    **dict.fromkeys(_VALUES, _Machine.push),
    **{name: _pushing(value) for name, value in _CONSTANTS.items()},
    **{f"TUPLE{count}": _joining(count) for count in (1, 2, 3)},
    **dict.fromkeys(("PROTO", "FRAME"), lambda *_: None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, place: m.push(m.memo[place])),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_SET": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "MARK": _Machine.mark,
    "TUPLE": lambda m, _: m.push(tuple(m.since_mark())),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, name: m.name(name.replace(" ", ".")),
    "STACK_GLOBAL": _Machine.stack_name,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": lambda m, _: m.push(m.outside(m.stack.pop())),
}
