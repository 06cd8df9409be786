"""A function of MLX traced by ``mx.export_function``, as a :class:`Graph`.

The callback form of ``mx.export_function`` is experimental: its records are read here and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx

from ....errors import UnsupportedError, WeighbridgeError
from ...common.memory import pass_on_shortage
from ...common.users_code import described, fault_of
from .composites import Marks, marking
from .graph import Graph, Node

Array = mx.array
Records = list[dict[str, Any]]


def trace(
    function: Callable[..., Sequence[Array]],
    inputs: Sequence[Array],
    parameters: Mapping[str, Array],
) -> Graph:
    """Return FUNCTION, called with INPUTS in order and PARAMETERS as one dictionary, as a graph.

    Raises:
        UnsupportedError: MLX cannot trace it.
    """
    keys = {f"p{place}": name for place, name in enumerate(parameters)}
    records: Records = []

    def called(*arrays: Array, **given: Array) -> list[Array]:
        return list(function(arrays, {keys[key]: array for key, array in given.items()}))

    given: Any = {key: parameters[name] for key, name in keys.items()}
    with marking() as marks, uncompiled():
        try:
            mx.export_function(records.append, called, *inputs, **given)
        except WeighbridgeError:
            raise
        except Exception as error:
            pass_on_shortage(error)
            raise UnsupportedError(f"MLX cannot trace the module: {reason(error)}") from error
    return _Reader(records, marks, keys).graph()


def reason(error: Exception) -> str:
    """Return what MLX says of a function that it cannot trace, the primitive in its words."""
    _, _, primitive = str(error).partition("Unable to get state for primitive ")
    if primitive:
        return f"its export has no form for the primitive {primitive}"
    return fault_of(error) or described(error)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions as they are written: what MLX compiled before has lost its marks."""
    calls = 0

    @mx.compile
    def probe(x: Array) -> Array:
        nonlocal calls
        calls += 1
        return x

    for _ in range(2):
        probe(mx.array(0))
    mx.disable_compile()
    try:
        yield
    finally:
        if calls == 1:
            mx.enable_compile()


def plain(value: Any) -> Any:
    """Return an argument of a primitive without MLX's types: dtypes by name, tuples as lists."""
    if isinstance(value, mx.Dtype):
        return dtype_name(value)
    return [plain(it) for it in value] if isinstance(value, tuple | list) else value


def dtype_name(dtype: mx.Dtype) -> str:
    """Return what MLX calls DTYPE.

    >>> dtype_name(mx.float32), dtype_name(mx.bool_)
    ('float32', 'bool')
    """
    return str(dtype).removeprefix("mlx.core.").removesuffix("_")


class _Reader:
    """Reads the records of one export."""

    def __init__(self, records: Records, marks: Marks, keys: Mapping[str, str]) -> None:
        kinds: dict[str, Records] = {}
        for record in records:
            kinds.setdefault(record["type"], []).append(record)
        self.shown: dict[str, tuple[Any, mx.Dtype]] = {}
        named = {
            it[1]: keys[it[0]]
            for kind in kinds.get("keyword_inputs", [])
            for it in kind["keywords"]
        }
        listed = self._shown(kinds["inputs"][0]["inputs"])
        self.parameters = named
        self.inputs = [it for it in listed if it not in named]
        self.outputs = self._shown(kinds["outputs"][0]["outputs"])
        self.constants: dict[str, Array] = {
            name: array for kind in kinds.get("constants", []) for name, array in kind["constants"]
        }
        self.shown |= {name: (it.shape, it.dtype) for name, it in self.constants.items()}
        self.marks = marks
        self.makers: dict[str, _Made] = {}
        self.aliases: dict[str, str] = {}
        for record in kinds.get("primitive", []):
            self._read(record)

    def _shown(self, listed: Sequence[tuple[str, Any, mx.Dtype]]) -> list[str]:
        self.shown |= {name: (tuple(shape), dtype) for name, shape, dtype in listed}
        return [name for name, *_ in listed]

    def _read(self, record: dict[str, Any]) -> None:
        read, made = self._shown(record["inputs"]), self._shown(record["outputs"])
        read = [self.aliases.get(name, name) for name in read]
        if record["name"] == "Depends":
            mark = self.marks.find(self.constants.get(name) for name in read[len(made) :])
            if mark is None:
                self.aliases |= dict(zip(made, read, strict=False))
                return
            node = _Made(mark.op, mark.arguments, read[len(made) + 1 :], made)
        else:
            node = _Made(record["name"], [plain(it) for it in record["arguments"]], read, made)
        self.makers |= dict.fromkeys(made, node)

    def graph(self) -> Graph:
        """Return what reaches the outputs, numbered in the order in which it is computed."""
        outputs = [self.aliases.get(name, name) for name in self.outputs]
        order = _ordered(outputs, self.makers)
        names = [*self.inputs, *self.parameters]
        names += [it for node in order for it in node.inputs if it in self.constants]
        names += [it for it in outputs if it in self.constants]
        names += [it for node in order for it in node.outputs]
        numbers = {name: place for place, name in enumerate(dict.fromkeys(names))}
        nodes = [
            Node(it.op, it.arguments, _numbers(it.inputs, numbers), _numbers(it.outputs, numbers))
            for it in order
        ]
        return Graph(
            inputs=_numbers(self.inputs, numbers),
            parameters={numbers[key]: name for key, name in self.parameters.items()},
            constants={numbers[k]: it for k, it in self.constants.items() if k in numbers},
            nodes=tuple(nodes),
            outputs=_numbers(outputs, numbers),
            shapes={number: self.shown[name][0] for name, number in numbers.items()},
            dtypes={number: dtype_name(self.shown[name][1]) for name, number in numbers.items()},
            observed={},
        )


class _Made:
    """A primitive of the records, by the names of its values there."""

    def __init__(
        self, op: str, arguments: Sequence[Any], inputs: list[str], outputs: list[str]
    ) -> None:
        self.op, self.arguments, self.inputs, self.outputs = op, arguments, inputs, outputs


def _numbers(names: Sequence[str], numbers: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(numbers[name] for name in names)


def _ordered(outputs: Sequence[str], makers: Mapping[str, _Made]) -> list[_Made]:
    """Return what OUTPUTS need, each after what it needs itself; the order follows inputs alone."""
    order: dict[int, _Made] = {}
    waiting = [(makers[name], False) for name in reversed(outputs) if name in makers]
    while waiting:
        node, ready = waiting.pop()
        if id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        waiting.append((node, True))
        waiting += [(makers[it], False) for it in reversed(node.inputs) if it in makers]
    return list(order.values())
