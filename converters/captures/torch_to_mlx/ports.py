"""Inputs of a captured module: names, dtypes, and sizes that may vary."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.utils._sympy.numbers import int_oo

from ....errors import MismatchError, UnsupportedError
from .dtypes import cast, mlx_dtype
from .indexed import Places, indexed
from .recording.deciding.asked import Tree, holds

ASKED: Final = "asked"  # likewise: what sizes must fulfil -> the line of code that asked
FIXED: Final = "fixed"  # likewise: a size -> the line of code that fixed one at it
HELD: Final = "held"  # in the graph's meta: input -> the values that it must have


class Size(NamedTuple):
    """A size that may vary: ``multiple`` times the symbol, the symbol between two bounds."""

    label: str
    symbol: str
    multiple: int = 1
    lower: int = 1
    upper: int | None = None


class Port(NamedTuple):
    """An input: its name, the graph's name of its value, dtype, sizes, places it may name, what it must be."""

    name: str
    value: str
    dtype: mx.Dtype
    sizes: tuple[int | Size, ...]
    places: Places | None = None
    held: Any = None


def _size(recorded: int | torch.SymInt, label: str | None, port: str, program: Any) -> int | Size:
    """Return a recorded size; ``torch.export`` counts 0 and 1 as special, so its bound 2 means 1."""
    if isinstance(recorded, int) or not recorded.node.expr.free_symbols:
        if label is not None:
            line = program.graph_module.meta.get(FIXED, {}).get(int(recorded))
            raise UnsupportedError(
                f"dimension {label!r} of input {port!r} cannot vary: the module's code fixes it at "
                f"{recorded}; leave it out of `dynamic`",
                [f"at {line}"] if line else [],
            )
        return int(recorded)
    multiple, symbol = recorded.node.expr.as_coeff_Mul()
    bounds = program.range_constraints.get(symbol)
    lower = 1 if bounds is None or bounds.lower <= 2 else int(bounds.lower)
    upper = None if bounds is None or bounds.upper in (int_oo, float("inf")) else int(bounds.upper)
    return Size(label or str(symbol), str(symbol), int(multiple), lower, upper)


def read_ports(
    program: ExportedProgram, names: list[str], dynamic: Mapping[str, Mapping[int, str]]
) -> tuple[Port, ...]:
    """Return the tensor inputs of PROGRAM, whose user inputs are called NAMES in order."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    places, held = indexed(program.graph), program.graph_module.meta.get(HELD, {})
    specs = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    ports = []
    for name, spec in zip(names, specs, strict=True):
        value = values.get(getattr(spec.arg, "name", ""))
        if isinstance(value, torch.Tensor):
            labels = dynamic.get(name, {})
            sizes = [_size(s, labels.get(i), name, program) for i, s in enumerate(value.shape)]
            dtype, own = mlx_dtype(value.dtype), places.get(spec.arg.name)
            only = held[name].tolist() if name in held else None
            ports.append(Port(name, spec.arg.name, dtype, tuple(sizes), own, only))
    _check_independent(ports)
    return tuple(ports)


def read_settings(program: ExportedProgram, names: list[str]) -> dict[str, Any]:
    """Return the inputs of PROGRAM, called NAMES in order, that are no tensors, as they were recorded."""
    specs = [s for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    given = zip(names, (spec.arg for spec in specs), strict=True)
    return {name: arg.value for name, arg in given if isinstance(arg, ConstantArgument)}


def _check_independent(ports: list[Port]) -> None:
    """Refuse dimensions of different names that the module's code forces to be equal."""
    labels: dict[str, str] = {}
    for size in (size for port in ports for size in port.sizes if isinstance(size, Size)):
        other = labels.setdefault(size.symbol, size.label)
        if other != size.label:
            raise UnsupportedError(
                f"dimensions {other!r} and {size.label!r} must be equal in the module's code: "
                "give them one name in `dynamic`"
            )


def _size_problem(port: Port, axis: int, given: int, seen: dict[str, int]) -> str | None:
    size = port.sizes[axis]
    where = f"{port.name}: axis {axis}"
    if isinstance(size, int):
        if given != size:
            return f"{where} has {given} elements, recorded with {size}: declare it in `dynamic`"
        return None
    count, rest = divmod(given, size.multiple)
    if rest or count < size.lower or (size.upper is not None and count > size.upper):
        limit = "or more" if size.upper is None else f"to {size.upper * size.multiple}"
        step = f" in steps of {size.multiple}" if size.multiple > 1 else ""
        return f"{where} ({size.label}) has {given} elements, allowed are {size.lower * size.multiple} {limit}{step}"
    if seen.setdefault(size.label, given) != given:
        return f"{where} ({size.label}) has {given} elements, another input has {seen[size.label]}"
    return None


def _dtype_problem(port: Port, value: mx.array) -> str | None:
    """Refuse what a cast would change: fractions for an integer, the imaginary part for a real."""
    for kind in (mx.inexact, mx.complexfloating):
        if mx.issubdtype(value.dtype, kind) and not mx.issubdtype(port.dtype, kind):
            given, wanted = (str(dtype).rpartition(".")[2] for dtype in (value.dtype, port.dtype))
            return f"{port.name}: {given} given, recorded with {wanted}: convert it first"
    return None


def _held_problem(port: Port, value: mx.array) -> str | None:
    """Refuse other values than those that decided; in a compiled function none can be seen."""
    try:
        if port.held is None or bool(_as_held(port, value).item()):
            return None
    except ValueError:  # values are not known while MLX traces
        return None
    return (
        f"{port.name}: holds other values than the example, by which the module's code decides"
        f" what it computes: capture it again with these"
    )


def _as_held(port: Port, value: mx.array) -> mx.array:
    return mx.array_equal(value, mx.array(port.held, dtype=port.dtype))


def shown(ports: tuple[Port, ...], values: Mapping[str, mx.array], result: Any) -> Any:
    """Return RESULT, NaN where it is floating and VALUES of the graph are not those that decided."""
    wrong = [~_as_held(port, values[port.value]) for port in ports if port.held is not None]
    if not wrong or not isinstance(result, mx.array) or not mx.issubdtype(result.dtype, mx.inexact):
        return result
    return mx.where(mx.any(mx.stack(wrong)), mx.array(float("nan"), dtype=result.dtype), result)


def _problems(port: Port, value: Any, seen: dict[str, int]) -> list[str]:
    if not isinstance(value, mx.array):
        return [f"{port.name}: {type(value).__name__} given, give an array of MLX or NumPy"]
    wrong = _dtype_problem(port, value)
    if not wrong and port.places:
        wrong = port.places.problem(port.name, value)
    if wrong:
        return [wrong]
    if value.ndim != len(port.sizes):
        return [f"{port.name}: {value.ndim} axes, recorded with {len(port.sizes)}"]
    found = [_size_problem(port, axis, given, seen) for axis, given in enumerate(value.shape)]
    return [problem for problem in found if problem] or list(
        filter(None, [_held_problem(port, value)])
    )


def _name_problems(ports: tuple[Port, ...], inputs: Mapping[str, Any]) -> list[str]:
    names = [port.name for port in ports]
    problems = [f"{name} is missing" for name in names if name not in inputs]
    for name in sorted(set(inputs) - set(names)):
        near = get_close_matches(name, names, 1)
        problems.append(f"{name} is unknown" + (f", did you mean {near[0]}?" if near else ""))
    return problems


def _array(value: np.ndarray[Any, Any]) -> mx.array:
    return mx.array(value, dtype=mx.float64) if value.dtype == np.float64 else mx.array(value)


def _setting_problem(name: str, recorded: Any, given: Any) -> str | None:
    if type(given) is type(recorded) and given == recorded:
        return None
    return f"{name}: {given!r} given, recorded with {recorded!r}: capture it again with that"


def _conditions_problems(
    ports: tuple[Port, ...], conditions: Mapping[Tree, str], arrays: Mapping[str, Any]
) -> list[str]:
    """Refuse sizes of which the module's code asked something that holds for the example alone."""
    sizes = {
        size.symbol: given // size.multiple
        for port in ports
        for size, given in zip(port.sizes, arrays[port.name].shape, strict=True)
        if isinstance(size, Size)
    }
    return [
        f"the module's code decides by sizes, and otherwise for these than for the example ({line}):"
        " capture it again with such sizes"
        for line in dict.fromkeys(holds(conditions, sizes))
    ]


def accept(
    ports: tuple[Port, ...],
    settings: Mapping[str, Any],
    conditions: Mapping[Tree, str],
    inputs: Mapping[str, Any],
) -> dict[str, mx.array]:
    """Return graph value -> array for INPUTS in the recorded dtypes; refuse any that do not fit.

    Those of SETTINGS, which are no tensors, may be given as they were recorded. Their sizes fulfil CONDITIONS.
    """
    given = {name: value for name, value in inputs.items() if name not in settings}
    arrays = {
        name: _array(value) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    problems, seen = _name_problems(ports, given), dict[str, int]()
    for name in sorted(set(inputs) - set(given)):
        problems += filter(None, [_setting_problem(name, settings[name], inputs[name])])
    for port in ports:
        if port.name in arrays:
            problems += _problems(port, arrays[port.name], seen)
    if conditions and not problems:
        problems = _conditions_problems(ports, conditions, arrays)
    if problems:
        raise MismatchError("the inputs do not fit the captured module", problems)
    return {port.value: cast(arrays[port.name], port.dtype) for port in ports}
