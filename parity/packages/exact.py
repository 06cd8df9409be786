"""The constants of a float16 program as they were before they were rounded.

With them the program's structure can be compared with the source's own weights: what remains of the
error is then what its operations do, not what half precision does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...converters.captures.mlprogram.arithmetic import rounds_to
from ...converters.values import Array
from ..weights.folding import EPSILONS, agree, unfolded
from ..weights.reference_index import Explanation
from ..weights.sketches.casts import cast, clamp, roundoff
from ..weights.sketches.sketch import Weights
from .constants import exact_by_rule, rules_of
from .source import SourceTensors


def exact_constants(
    manifest: Mapping[str, Any],
    explanations: Sequence[Explanation],
    weights: Weights,
    source: SourceTensors,
) -> tuple[dict[str, Array], list[str]]:
    """Return the float16 constants as they were before rounding, and the names of those unknown."""
    rules, found, unknown = rules_of(manifest), {}, []
    for it in explanations:
        if it.name not in weights.headers or weights.headers[it.name].dtype != "F16":
            continue
        array = weights.read(it.name)
        exact = exact_by_rule(array, rules.get(it.name) or {}, source)
        exact = exact if exact is not None else unrounded(it, array, source)
        if exact is None:
            unknown.append(it.name)
        else:
            found[it.name] = exact.astype(np.float32)
    return found, unknown


def unrounded(it: Explanation, array: Array, source: SourceTensors) -> Array | None:
    """Return the numbers of the source that ARRAY, explained by IT, was rounded from."""
    if it.kind == "made":
        return array
    if it.kind == "folded":
        return _unfolded(it, array, source)
    try:
        options = list(_options(it, array, source))
    except (KeyError, ValueError):
        return None
    singles = (one.astype(np.float32) for one in options)
    return next((one for one in singles if rounds(one, array)), None)


def _unfolded(it: Explanation, array: Array, source: SourceTensors) -> Array | None:
    """Return what ARRAY, a weight or a bias with a batch norm inside, was rounded from."""
    known = source.epsilon(it.also[0].rpartition(".")[0])
    for epsilon in EPSILONS if known is None else (known,):
        for one in unfolded(it, partial(source.read, "key"), epsilon):
            if one.size == array.size and agree(array, one.reshape(array.shape), roundoff("F16")):
                return one.reshape(array.shape)
    return None


def rounds(one: Array, array: Array) -> bool:
    """Say whether coremltools rounds ONE to ARRAY: what would vanish keeps the least magnitude in small ones.

    Source: ``FP16ComputePrecision`` in coremltools 9, which looks at constants of fewer than 400 numbers.

    >>> rounds(np.float32([1e-12]), np.float16([0])), rounds(np.float32([1]), np.float16([0]))
    (True, False)
    """
    return np.array_equal(clamp(one), array) or np.array_equal(cast(one, "F16"), array)


def _options(it: Explanation, array: Array, source: SourceTensors) -> Iterator[Array]:
    names = it.parts or ((it.source,) if it.source else ())
    parts = [source.read("key", name) for name in names]
    if len(parts) > 1:
        joined = [np.concatenate(parts, axis) for axis in range(parts[0].ndim)]
        yield from (one for one in joined if one.shape == array.shape)
        yield from (np.stack(parts, a).reshape(array.shape) for a in range(parts[0].ndim + 1))
    elif parts and parts[0].size == array.size:
        turned = parts[0].transpose(it.axes) if it.axes and len(it.axes) == parts[0].ndim else None
        yield from (one.reshape(array.shape) for one in (parts[0], turned) if one is not None)
    elif parts and parts[0].shape[1:] == array.shape[1:]:
        yield from _windows(parts[0], array)


def _windows(whole: Array, array: Array) -> Iterator[Array]:
    """Yield those rows of WHOLE that may be ARRAY: as many, and the first begins alike."""
    first = clamp(whole.reshape(len(whole), -1)[:, 0]) == array.reshape(-1)[0]
    for row in np.flatnonzero(first[: len(whole) - len(array) + 1]):
        yield whole[row : row + len(array)]


def likely_scalars(numbers: Collection[float], scalars: Mapping[str, Array]) -> dict[str, Array]:
    """Return those NUMBERS of the source that SCALARS, constants without axes, are rounded from.

    >>> likely_scalars({0.1, 0.5}, {"a": np.float16(0.1).reshape(())})
    {'a': array(0.1)}
    """
    found = {
        name: next((np.asarray(it) for it in numbers if rounds_to(np.asarray(it), array)), None)
        for name, array in scalars.items()
        if float(array) not in numbers
    }
    return {name: exact for name, exact in found.items() if exact is not None}


def put_back(
    constants: Mapping[str, Array], numbers: Collection[float], buffers: Mapping[str, Array]
) -> dict[str, Array]:
    """Return those CONSTANTS in 16 bits that the source's own NUMBERS or BUFFERS round to, as these are.

    Exporters take the root of a score's scale for keys and queries alone.
    """
    whole = {*numbers, *(math.sqrt(it) for it in numbers if it > 0)}
    single = {name: it.reshape(()) for name, it in constants.items() if it.size == 1}
    found = likely_scalars(numbers, single)
    found = {**likely_scalars(whole, {n: single[n] for n in single.keys() - found.keys()}), **found}
    for name in constants.keys() - single.keys():
        same = (it for it in buffers.values() if rounds_to(it, constants[name]))
        if (exact := next(same, None)) is not None:
            found[name] = exact
    return {
        name: it.reshape(constants[name].shape).astype(np.float32) for name, it in found.items()
    }


def exact_scalars(manifest: Mapping[str, Any], scalars: Mapping[str, Array]) -> dict[str, Array]:
    """Return those numbers in MANIFEST that SCALARS, constants without axes, may be rounded from."""
    given = dict(manifest.get("exact") or {})
    known = {name: np.asarray(float(number)) for name, number in given.items() if name in scalars}
    return {name: it for name, it in known.items() if rounds_to(it, scalars[name])}
