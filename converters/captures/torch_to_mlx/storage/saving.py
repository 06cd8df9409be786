"""Captures as files of MLX's own (``.mlxfn``), which run without Weighbridge and without torch.

A file holds one trace for each size that it was saved for: MLX fixes what Python reads of shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from .....errors import BadInputError, MismatchError, UnsupportedError
from ..operations.gradients import forward_only
from ..ports import Port, Size

Arrays = dict[str, mx.array]
Sizes = Iterable[Mapping[str, int]]


def save(
    run: Callable[[Arrays], list[mx.array]], ports: tuple[Port, ...], path: Path, sizes: Sizes
) -> None:
    """Write RUN, with the weights in it, to PATH, and read it back: outputs must agree.

    Args:
        run: a function of arrays by name.
        ports: its inputs.
        path: the file.
        sizes: one mapping of dimension -> size for each trace.

    Raises:
        BadInputError: SIZES lack a dimension that varies, or PATH is not called ``.mlxfn`` or is in no folder.
        UnsupportedError: MLX cannot write it, or what is read back computes something else.
    """
    if path.suffix != ".mlxfn":
        raise BadInputError(f"{path}: name it *.mlxfn")
    if not path.parent.is_dir():
        raise BadInputError(f"{path}: there is no folder {path.parent}")
    examples = [_example(ports, chosen) for chosen in sizes or ({},)]
    draft = path.with_name(f".{path.stem}.partial.mlxfn")
    random: Any = mx.random.state
    before = random[0].tolist()
    try:
        with forward_only(), mx.exporter(str(draft), lambda **arrays: run(arrays)) as export:
            for example in examples:
                export(**example)
        if random[0].tolist() != before:
            raise UnsupportedError(
                "it draws random numbers, which a file would repeat: call .eval()"
            )
        _check(draft, run, [_fitting(run, ports, example) for example in examples])
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _example(ports: tuple[Port, ...], sizes: Mapping[str, int]) -> Arrays:
    return {
        port.name: _values(port, [_size(port, size, sizes) for size in port.sizes])
        for port in ports
    }


def _size(port: Port, size: int | Size, sizes: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    if size.label not in sizes:
        raise BadInputError(
            f"say for which sizes to save: {size.label!r} of input {port.name} varies, as in "
            f"sizes=[{{{size.label!r}: 8}}]"
        )
    return sizes[size.label]


def _values(port: Port, shape: list[int]) -> mx.array:
    """Return values that tell something: small numbers, each another."""
    rows = port.places.last + 1 if port.places else 2
    count = mx.arange(max(1, mx.zeros(shape).size)) % min(rows, 7)
    kept = count[: mx.zeros(shape).size].reshape(shape)
    is_float = mx.issubdtype(port.dtype, mx.inexact)
    return (kept * 0.25 - 0.5 if is_float else kept).astype(port.dtype)


def _fitting(
    run: Callable[[Arrays], list[mx.array]], ports: tuple[Port, ...], own: Arrays
) -> Arrays:
    """Return OWN, or other whole numbers for it where the module refuses these: lengths of its axes, for sequences."""
    free = [it.name for it in ports if not (it.places or mx.issubdtype(it.dtype, mx.inexact))]
    lengths = sorted({size for array in own.values() for size in array.shape}, reverse=True)
    tries = [
        {**own, **{name: mx.maximum(1, length - own[name]) for name in free}} for length in lengths
    ]
    for each in (own, *tries):
        with contextlib.suppress(MismatchError):
            run(each)
            return each
    return own


def _check(path: Path, run: Callable[[Arrays], list[mx.array]], examples: list[Arrays]) -> None:
    read: Any = mx.import_function(str(path))
    for example in examples:
        if not all(map(_same, read(**example), run(example))):
            raise UnsupportedError(
                f"{path.name} computes something else than the capture: not written"
            )


def _same(found: mx.array, wanted: mx.array) -> bool:
    """Say whether both are equal up to rounding: MLX compiles what it reads, and fuses operations."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if wanted.size == 0 or not mx.issubdtype(wanted.dtype, mx.floating):
        return bool(mx.array_equal(found, wanted))
    finite = mx.where(mx.isfinite(wanted), mx.abs(wanted), 0)
    room = 64 * float(mx.finfo(wanted.dtype).eps) * finite.max().item().real
    return bool(mx.allclose(found, wanted, rtol=0, atol=room, equal_nan=True))


def flat(structure: Any) -> list[Any]:
    """Return the leaves of what a module returns, those of dictionaries in their order."""
    if isinstance(structure, Mapping):
        return [leaf for below in structure.values() for leaf in flat(below)]
    if isinstance(structure, tuple):
        return [leaf for below in structure for leaf in flat(below)]
    return [structure]
