"""bitsandbytes in four bits (NF4, FP4), read: its 16 values lie on no line, so the weights are dense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, computed, same
from ...checkpoints.formats.ranges import gather
from ...documents import parse_object
from ...values import Array
from ..mlx import SUFFIX, each_block
from .base import Format, Read, Section, require

NAME: Final = "bitsandbytes"
STATE: Final = f"{SUFFIX}.quant_state.bitsandbytes__"
ENDINGS: Final = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
FLAT: Final = 2  # codes to a byte, the first in the higher half


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW dense, in float32, which its values are rounded to once.

    Raises:
        BadInputError: what a weight needs is missing or contradicts it.
        UnsupportedError: the weights have eight bits.
    """
    if section.get("load_in_8bit"):
        raise UnsupportedError(f"{NAME} of 8 bits is not read; dequantize the model with it first")
    paths = [name[: name.index(STATE)] for name in raw.headers if STATE in name]
    if not paths:
        raise BadInputError(f"{raw.path}: config.json says {NAME}; no tensor is called *{STATE}*")
    sources = {path + SUFFIX: _dense(raw, path) for path in paths}
    hidden = {f"{path}{SUFFIX}{ending}" for path in paths for ending in ("", *ENDINGS)}
    hidden |= {name for name in raw.headers if STATE in name}
    sources |= {name: same(raw, name) for name in raw.headers if name not in hidden}
    note = f"{len(paths)} weights are dense in float32, {paths[0]} first: MLX has no such 16 values"
    return Read(Assembled(raw, sources), None, (note,))


def _dense(raw: Checkpoint, path: str) -> Source:
    """Return the weight of the module PATH: the value of each code times the scale of its block."""
    name, state = path + SUFFIX, _state(raw, path)
    shape, size = _sizes(state, name)
    packed, count = require(raw.headers, name, path), math.prod(shape)
    if packed.dtype != "U8" or packed.nbytes * FLAT != count or shape[-1] % FLAT:
        raise BadInputError(f"{name} is {packed}, expected {count // FLAT} bytes for {list(shape)}")
    table, scales = _table(raw, path), _scales(raw, path, state)
    if len(table) != 16 or len(scales) != -(-count // size):
        raise BadInputError(
            f"{name}: {len(table)} values, {len(scales)} scales; expected 16 and {-(-count // size)}"
        )

    def rows_of(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, shape[-1]):
            first, last = block.start * shape[-1], block.stop * shape[-1]
            data = gather(raw.stream(name, first // FLAT, last // FLAT), (last - first) // FLAT)
            codes = np.stack([data >> 4, data & 15], axis=-1).reshape(-1)
            worth = table[codes] * scales[np.arange(first, last) // size]
            yield worth.astype(np.float32).reshape(-1, shape[-1])

    return computed(Header("F32", shape), rows_of)


def _state(raw: Checkpoint, path: str) -> Mapping[str, Any]:
    name = next(name for name in raw.headers if name.startswith(path + STATE))
    return parse_object(raw.read(name).tobytes(), f"{raw.path}: {name}")


def _sizes(state: Mapping[str, Any], name: str) -> tuple[tuple[int, ...], int]:
    shape, size = state.get("shape"), state.get("blocksize")
    whole = isinstance(shape, list) and all(type(it) is int and it > 0 for it in shape)
    if (
        not isinstance(shape, list)
        or not whole
        or len(shape) < 2
        or type(size) is not int
        or size < 1
    ):
        raise BadInputError(f"{name}: its state says shape {shape!r} in blocks of {size!r}")
    return tuple(shape), size


def _table(raw: Checkpoint, path: str, ending: str = ".quant_map") -> Array:
    name = path + SUFFIX + ending
    require(raw.headers, name, path)
    return raw.read(name).astype(np.float64).reshape(-1)


def _scales(raw: Checkpoint, path: str, state: Mapping[str, Any]) -> Array:
    """Return the scale of each block; those may be codes of 8 bits themselves."""
    name = path + SUFFIX + ".absmax"
    if require(raw.headers, name, path).dtype != "U8":
        return raw.read(name).astype(np.float64).reshape(-1)
    codes = raw.read(name).reshape(-1)
    table, larger = (_table(raw, path, it) for it in (".nested_quant_map", ".nested_absmax"))
    size, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if type(size) is not int or size < 1 or not isinstance(offset, int | float):
        raise BadInputError(f"{name}: its state says blocks of {size!r}, offset {offset!r}")
    if len(table) != 256 or len(larger) != -(-len(codes) // size):
        raise BadInputError(
            f"{name}: {len(table)} values, {len(larger)} scales for {len(codes)} codes"
        )
    scales: Array = table[codes] * larger[np.arange(len(codes)) // size] + offset
    return scales


FORMAT: Final = Format(read, None)
