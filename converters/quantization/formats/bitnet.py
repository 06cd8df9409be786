"""BitNet: -1, 0 and 1 in two bits each, four rows to a byte, one scale for a weight.

Byte R of a column holds rows R, R + N/4, R + 2N/4 and R + 3N/4 (`transformers/integrations/bitnet.py`). An
``autobitlinear`` multiplies by the scale, a ``bitlinear`` divides by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, computed, fixed, read_rows, same
from ...common.dtypes import FLOATS, NUMPY
from ...values import Array
from ..mlx import SUFFIX, each_block, stem
from ..packing import unpack
from ..scheme import Scheme
from ..view import Dequantized
from .base import METHOD, Format, Read, Section, Written, section_of
from .integers import Integers, as_parts, grids_of
from .modules import is_linear, left_dense, others

NAME: Final = "bitnet"
# Where these are one tensor, nothing converts them, and published checkpoints do not list them.
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
MULTIPLIED, DIVIDED = "autobitlinear", "bitlinear"
SCALE: Final = "_scale"
ROWS: Final = 4  # to a byte
BITS: Final = 2


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it: codes 0, 1 and 2 with biases of minus the scale.

    Raises:
        BadInputError: no weight has a scale, or one is no single number.
        UnsupportedError: layers are of another class.
    """
    kind = section.get("linear_class", DIVIDED)
    if kind not in (MULTIPLIED, DIVIDED):
        raise UnsupportedError(
            f"linear_class {kind!r} is unknown; known are {MULTIPLIED}, {DIVIDED}"
        )
    names = [
        name
        for name, it in raw.headers.items()
        if it.dtype == "U8" and name.endswith(SUFFIX) and len(it.shape) == 2
    ]
    if not names:
        raise BadInputError(f"{raw.path}: config.json says {NAME}, and no weight is in bytes")
    sources: dict[str, Source] = {}
    schemes: dict[str, Scheme] = {}
    for name in names:
        made, scheme = as_parts(stem(name), _opened(raw, name, kind == DIVIDED))
        sources |= made
        schemes |= {name: scheme} if scheme else {}
    hidden = {*names, *(name + SCALE for name in names)}
    sources |= {name: same(raw, name) for name in raw.headers if name not in hidden}
    note = f"a {DIVIDED} divides by its scale: 1 / scale is rounded to float32"
    return Read(Assembled(raw, sources), section_of(schemes), (note,) if kind == DIVIDED else ())


def _opened(raw: Checkpoint, name: str, divided: bool) -> Integers:
    quarter, columns = raw.headers[name].shape
    scale = raw.headers.get(name + SCALE)
    if scale is None:
        raise BadInputError(f"{name}{SCALE} is missing, which the quantized weight {name} needs")
    number = raw.read(name + SCALE).reshape(-1)
    if len(number) != 1 or scale.dtype not in FLOATS or not number.astype(np.float64)[0] > 0:
        raise BadInputError(f"{name}{SCALE} is {scale} {number[:3]}, expected one number above 0")
    if divided:
        number = (1 / number.astype(np.float64)).astype(np.float32)
    group = next((size for size in (128, 64, 32) if columns % size == 0), columns)

    def codes(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, columns):
            yield np.concatenate(list(_quarters(raw, name, quarter, block)))

    def scales(rows: slice) -> Array:
        return np.broadcast_to(number, (rows.stop - rows.start, columns // group))

    def zeros(rows: slice) -> Array:
        return np.ones((rows.stop - rows.start, columns // group), np.uint8)

    dtype = "F32" if divided else scale.dtype
    shape = (quarter * ROWS, columns)
    return Integers(shape, BITS, group, codes, scales, zeros, dtype, None, dtype)


def _quarters(raw: Checkpoint, name: str, quarter: int, rows: slice) -> Iterator[Array]:
    """Yield the codes of ROWS, as far as they lie at one place of the bytes."""
    for place in range(rows.start // quarter, -(-rows.stop // quarter)):
        first = max(rows.start - place * quarter, 0)
        last = min(rows.stop - place * quarter, quarter)
        yield read_rows(raw, name, slice(first, last)) >> np.uint8(BITS * place) & np.uint8(3)


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS that have three values and one scale; the rest is dense.

    Raises:
        UnsupportedError: there are none.
    """
    numbers = {
        name: number
        for name, scheme in parts.schemes.items()
        if scheme.affine
        and scheme.bits == BITS
        and is_linear(name, parts.headers[name])
        and parts.headers[name].shape[0] % ROWS == 0
        and (number := _one_scale(parts, name)) is not None
    }
    if not numbers:
        raise UnsupportedError(
            f"{NAME} holds linear layers of -1, 0 and 1 with one scale; there are none. Choose another"
        )
    sources = others(parts, frozenset(numbers))
    for name, number in numbers.items():
        rows, columns = parts.headers[name].shape
        sources[name] = computed(Header("U8", (rows // ROWS, columns)), _Packed(parts, name))
        sources[name + SCALE] = fixed(number)
    section: dict[str, object] = {
        METHOD: NAME,
        "linear_class": MULTIPLIED,
        "quantization_mode": "offline",
    }
    dense = left_dense(parts.headers, frozenset(numbers))
    if f"{HEAD}.weight" in parts.headers or not {EMBEDDING, HEAD}.issuperset(dense):
        section["modules_to_not_convert"] = dense
    return Written(Assembled(parts.raw, sources), section, {})


def _one_scale(parts: Dequantized, name: str) -> Array | None:
    """Return the scale of the weight NAME if there is only one, and biases are minus it."""
    header = parts.raw.headers[parts.part_names(name)["scales"]]
    rows = slice(0, header.shape[0])
    scales, biases = (it.astype(np.float64) for it in grids_of(parts, name, rows))
    if not (scales == scales[0, 0]).all() or not (biases == -scales).all() or scales[0, 0] <= 0:
        return None
    return scales[0, :1].astype(NUMPY[header.dtype])


class _Packed:
    """Rows of the bytes of the weight NAME, checked to hold three values."""

    def __init__(self, parts: Dequantized, name: str) -> None:
        self._parts, self._name = parts, name

    def __call__(self, rows: slice) -> Iterator[Array]:
        count, columns = self._parts.headers[self._name].shape
        quarter = count // ROWS
        for block in each_block(rows, columns):
            packed = np.zeros((block.stop - block.start, columns), np.uint8)
            for place in range(ROWS):
                at = slice(block.start + place * quarter, block.stop + place * quarter)
                packed |= self._codes(at) << np.uint8(BITS * place)
            yield packed

    def _codes(self, rows: slice) -> Array:
        stored = self._parts.part_names(self._name)["weight"]
        codes = unpack(read_rows(self._parts.raw, stored, rows), BITS)
        if codes.max(initial=0) > 2:
            raise UnsupportedError(f"{self._name} has a fourth value, which {NAME} has not")
        return codes


FORMAT: Final = Format(read, write)
