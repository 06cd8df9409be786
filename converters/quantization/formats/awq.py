"""AWQ as ``gemm`` kernels read it: 4 bits, eight outputs to a word in an order of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, computed, whole
from ...values import Array
from ..mlx import each_block, stem
from ..packing import pack_columns, unpack
from ..view import Dequantized
from .base import METHOD, Format, Read, Section, Written
from .columns import Chosen, Module, Upright, choose, read_modules, scales_source
from .integers import Integers
from .modules import left_dense, others

NAME: Final = "awq"
BITS: Final = 4
ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each place of a word holds
BACK: Final = tuple(int(place) for place in np.argsort(ORDER))


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it.

    Raises:
        BadInputError: a tensor is missing, or contradicts another or SECTION.
        UnsupportedError: the layout or the width is another.
    """
    _require_known(section)
    return read_modules(raw, section, 1, _opened)


def _require_known(section: Section) -> None:
    """Refuse what SECTION has otherwise than :func:`write` writes it.

    Raises:
        UnsupportedError: says which setting it is.
    """
    version = str(section.get("version", section.get("format", "gemm"))).lower()
    bits, points = section.get("bits"), section.get("zero_point", True)
    if version != "gemm":
        words = f"version {version!r} is unknown; known is 'gemm'"
    elif bits != BITS:
        words = f"bits is {bits!r}; known is {BITS}"
    elif points is not True:
        words = f"zero_point is {points!r}; known are weights with zero points (true)"
    else:
        return
    raise UnsupportedError(f"{NAME}: {words}. Save the model dense with the library that wrote it")


def _opened(module: Module) -> Integers:
    size = module.size

    def codes(part: slice) -> Iterator[Array]:
        packed = module.read("qweight")
        for block in each_block(part, module.shape[1]):
            first = block.start // 8
            found = _outputs(packed[:, first : -(-block.stop // 8)])
            yield np.ascontiguousarray(found[:, block.start - first * 8 : block.stop - first * 8].T)

    return Integers(
        module.shape,
        BITS,
        size,
        codes,
        module.grid(lambda: module.read("scales"), size),
        module.grid(lambda: _outputs(module.read("qzeros")), size),
        module.raw.headers[f"{module.path}.scales"].dtype,
    )


def _outputs(words: Array) -> Array:
    """Return what WORDS, of any rows, hold for each output."""
    found = unpack(np.ascontiguousarray(words).view(np.uint32), BITS)
    return found.reshape(len(found), -1, 8)[..., BACK].reshape(found.shape)


def _in_order(codes: Array) -> Array:
    """Return CODES, outputs by any columns, as words for each column; undoes :func:`_outputs`."""
    ordered = codes.reshape(-1, 8, codes.shape[-1])[:, ORDER].reshape(codes.shape)
    return pack_columns(ordered, BITS).view(np.int32)


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS that have its commonest scheme of 4 bits; the rest is dense.

    Raises:
        UnsupportedError: no linear layer has 4 bits.
    """
    chosen = choose(parts, NAME, (BITS,))
    sources = others(parts, frozenset(chosen.fits))
    for name in chosen.fits:
        sources |= _tensors(Upright(parts, name), chosen)
    section = {
        METHOD: NAME,
        "bits": BITS,
        "group_size": chosen.scheme.group_size,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": left_dense(parts.headers, frozenset(chosen.fits)),
    }
    return Written(Assembled(parts.raw, sources), section, chosen.losses, chosen.notes)


def _tensors(weight: Upright, chosen: Chosen) -> dict[str, Source]:
    path, (rows, groups) = stem(weight.name), weight.groups
    columns = groups * chosen.scheme.group_size

    def words(part: slice) -> Iterator[Array]:
        stored = weight.words()
        for block in each_block(part, rows):
            first = block.start // 8
            codes = unpack(stored[:, first : -(-block.stop // 8)], BITS)
            yield _in_order(codes[:, block.start - first * 8 : block.stop - first * 8])

    return {
        f"{path}.qweight": computed(Header("I32", (columns, rows // 8)), words),
        f"{path}.qzeros": whole(
            Header("I32", (groups, rows // 8)), lambda: _in_order(weight.zeros().T)
        ),
        f"{path}.scales": scales_source(weight, chosen.dtype),
    }


FORMAT: Final = Format(read, write)
