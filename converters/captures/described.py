"""What the record of an export says of constants: tensors of the source, or computed from them ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..values import Array
from .constants import match_weights, origin_of, values_of
from .interpolated.graphs import none_of_it
from .mlprogram.arithmetic import evaluate, rounds_to, tensors_of

UNIFORM: Final = "uniform"  # in a record: tensors that are one number, and that no constant tells
FEW: Final = 3  # numbers; fewer are any tensor times something


def recorded_of(
    constants: Mapping[str, Array],
    module: torch.nn.Module,
    unneeded: Collection[str],
    parts: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return what a record says of CONSTANTS in floating point, of a graph of MODULE.

    Args:
        constants: by name.
        module: the source.
        unneeded: its tensors that no output depends on.
        parts: what the graph computes with besides them, as arithmetic.

    Returns:
        ``weights`` and ``made`` of ``described``; ``origins``, dtype and hash of what went into the
        latter; and the tensors that no constant tells; see ``uniform``.
    """
    weights, made = described(constants, module, parts)
    state = module.state_dict()
    keys = sorted({key for rule in made.values() for key in tensors_of(rule)})
    origins = {key: origin_of(state[key]) for key in keys}
    alike = uniform(state, weights, (*keys, *unneeded))
    return {"weights": weights, "made": made, "origins": origins, UNIFORM: alike}


def held(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of MODULE that files of it hold, and those that it computes itself, by name."""
    state, never = module.state_dict(), {*(getattr(module, "_keys_to_ignore_on_save", None) or ())}
    computed = {name: it for name, it in module.named_buffers() if name not in state}
    computed |= {name: it for name, it in state.items() if name in never}
    return {name: it for name, it in state.items() if name not in never}, computed


def described(
    constants: Mapping[str, Array], module: torch.nn.Module, parts: Sequence[Any] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Say by values which of CONSTANTS, in floating point, is which tensor of MODULE.

    Returns:
        The constants that are tensors of the state dict, and the others with axes, with the buffer
        outside the state dict that one may be.
    """
    state, own = held(module)
    weights = match_weights(constants, state)
    rest = {name: array for name, array in constants.items() if name not in weights}
    buffers = {
        name: {"value": {"buffer": entry["key"]}}
        for name, entry in match_weights(rest, own).items()
        if not entry.get("transposed")
    }
    both = [it for part in parts for it in (part, ["turned", part])]
    exact = [(part, evaluate(part, none_of_it)) for part in both]
    made = {
        name: buffers.get(name) or one_of(it, exact) or folded(it, module) or cut_out(it, state)
        for name, it in rest.items()
    }
    return weights, {name: rule for name, rule in made.items() if rule or rest[name].ndim}


def one_of(array: Array, parts: Sequence[tuple[Any, Array]]) -> dict[str, Any]:
    """Return the rule that ARRAY is one of PARTS, arithmetic and its value, rounded; empty where it is none."""
    found = (
        part for part, exact in parts if exact.shape == array.shape and rounds_to(exact, array)
    )
    return next(({"value": part} for part in found), {})


def uniform(
    state: Mapping[str, Tensor], weights: Mapping[str, Mapping[str, Any]], besides: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Say of the tensors of STATE that are none of WEIGHTS or BESIDES what number they are everywhere.

    An exporter leaves such a one out where it has no effect, or keeps it as one of many constants alike.

    Returns:
        tensor -> ``number``, and ``dtype`` and ``xxh3`` of it; others are left out.

    >>> uniform(torch.nn.LayerNorm(2).state_dict(), {}, ["weight"])["bias"]["number"]
    0.0
    """
    known = {key for it in weights.values() for key in (it["key"], *it.get("also", ()))}
    known.update(besides)
    rest = {name: it for name, it in state.items() if name not in known and it.is_floating_point()}
    firsts = {name: it.reshape(-1)[0] for name, it in rest.items() if it.numel()}
    return {
        name: {"number": float(first), **origin_of(rest[name])}
        for name, first in firsts.items()
        if bool((rest[name] == first).all())
    }


def folded(array: Array, module: torch.nn.Module) -> dict[str, Any]:
    """Return the rule by which ARRAY was computed from tensors of MODULE ahead of time; empty for none.

    >>> norm = torch.nn.LayerNorm(3)
    >>> norm.weight.data = torch.tensor([0.5, -2.0, 3.0])
    >>> folded(np.array([1.5, -1, 4], np.float32), norm)
    {'value': ['add', {'key': 'weight'}, 1.0]}
    """
    state = module.state_dict()

    def read(_: str, name: str) -> Array:
        return values_of(state[name]).astype(np.float64).reshape(-1)

    alike = {
        name: read("", name)
        for name, it in state.items()
        if it.is_floating_point() and squeezed(it.shape) == squeezed(array.shape)
    }
    found = (
        {"value": rule}
        for rule in attempts(array.astype(np.float64).reshape(-1), alike)
        if rounds_to(evaluate(rule, read), array)
    )
    return next(found, {})


def cut_out(array: Array, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the rule that ARRAY is rows of a tensor of STATE; empty where it is none, or one number."""
    if array.size < FEW or bool((array == array.flat[0]).all()):
        return {}
    alike = [
        name
        for name, it in state.items()
        if it.is_floating_point() and it.ndim < 3 and it.shape[1:] == array.shape[1:][-1:]
    ]
    rows = rows_of(array, alike, lambda _, name: values_of(state[name]))
    return {"value": rows} if rows else {}


def squeezed(shape: Sequence[int]) -> list[int]:
    """Return SHAPE without the axes of size 1.

    >>> squeezed((1, 20, 1))
    [20]
    """
    return [size for size in shape if size != 1]


def attempts(array: Array, alike: Mapping[str, Array]) -> Iterator[list[Any]]:
    """Yield how ARRAY may be computed from what is ALIKE in shape, with one number or as a number."""
    for name, own in alike.items():
        source = {"key": name}
        if array.size < FEW:
            yield ["exp", source]
            if (2 * array % 1).any():  # halves are in every graph
                yield from (["neg", source], ["reciprocal", source])
                yield from (["add", source, 1.0], ["sub", 1.0, source])
            continue
        square = float((own * own).sum()) or 1.0
        added = float(np.float32((array - own).mean()))
        yield from (["add", source, it] for it in (float(f"{added:.3g}"), added))
        factor = float(np.float32((own * array).sum() / square))
        if factor:  # anything times zero is zeros
            yield from (["mul", source, it] for it in (float(f"{factor:.3g}"), factor))


def rows_of(
    array: Array, state: Iterable[str], read: Callable[[str, str], Array]
) -> list[Any] | None:
    """Return which rows of a table ARRAY is, or which one again and again, where sizes are fixed.

    Positions and token types are then looked up ahead of time. Of a vector it is some of the numbers, as of
    biases that a layer keeps joined.
    """
    if array.size < FEW:
        return None
    flat = array.reshape(-1, *array.shape[-1:]) if array.ndim > 1 else array.reshape(-1, 1)
    times = len(flat) if bool((flat == flat[0]).all()) else 1
    count = len(flat) // times
    for name in state:
        table = read("key", name)
        table = table[:, None] if table.ndim == array.ndim == 1 else table
        if table.ndim != 2 or table.shape[1] != flat.shape[1] or len(table) <= count:
            continue
        firsts = table[: len(table) - count + 1, 0]
        for start in np.flatnonzero(np.isclose(firsts, flat[0, 0], 1e-3, 1e-6)).tolist():
            if rounds_to(table[start : start + count], flat[:count]):
                rows = ["rows", {"key": name}, float(start), float(start + count)]
                return rows if times == 1 else ["repeat", rows, float(times)]
    return None


def picked_from(
    array: Array, state: Iterable[str], read: Callable[[str, str], Array]
) -> list[Any] | None:
    """Return which rows of a table ARRAY has along its last axes, as biases of relative positions."""
    shape = [size for size in array.shape if size != 1]
    if len(shape) < 3:
        return None
    columns = array.reshape(shape[0], -1).T
    for name in state:
        table = read("key", name)
        if table.ndim == 2 and table.shape[1] == shape[0] and len(table) <= len(columns):
            own = table.astype(np.float32).astype(array.dtype)
            places = {row.tobytes(): at for at, row in reversed([*enumerate(own)])}
            found = [places.get(row.tobytes(), -1) for row in columns]
            if {*found} == {*range(len(table))}:
                return ["picked", {"key": name}, *map(float, found)]
    return None
