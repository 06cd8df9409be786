"""Codes that another program's ONNX file keeps, as MLX's parts where these stand for the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ..checkpoints.formats.onnx_model import OnnxFile
from ..quantization import Blocks, Scheme
from ..quantization.scheme import OFFERED
from ..values import Array

SIZES: Final = OFFERED["affine"][1]
GROUPS: Final = (
    f"its scales are of other groups of columns than MLX's ({', '.join(map(str, sorted(SIZES)))})"
)
ORDER: Final = "its columns are in another order"
DIGITS: Final = "its zeros times its scales have more digits than float32 keeps"
OTHERWISE: Final = "the graph makes it of codes in a way that MLX has no parts for"


class Line(NamedTuple):
    """A weight on codes: ``scale * code + bias``.

    Attributes:
        codes: whole numbers, shape ``(rows, columns)``, rows as in PyTorch.
        scales: shape ``(rows, groups)``.
        biases: likewise, in float64.
        bits: of a code.
    """

    codes: Array
    scales: Array
    biases: NDArray[np.float64]
    bits: int

    def blocks(self) -> Blocks:
        """Return it in MLX's parts, with nothing rounded.

        Raises:
            UnsupportedError: these cannot hold it.
        """
        columns, groups = self.codes.shape[1], self.scales.shape[1]
        size = columns // groups
        fitting = max((it for it in SIZES if size % it == 0), default=0)
        if not fitting or size * groups != columns:
            raise UnsupportedError(GROUPS)
        floats = {"scales": self.scales.astype(np.float64), "biases": self.biases}
        narrow = (np.float16,) if self.scales.dtype == np.float16 else ()
        for dtype in (*narrow, np.float32):
            with np.errstate(over="ignore"):
                parts = {part: it.astype(dtype) for part, it in floats.items()}
            if all(np.array_equal(parts[part].astype(np.float64), floats[part]) for part in parts):
                each = {part: np.repeat(it, size // fitting, axis=1) for part, it in parts.items()}
                return Blocks.of_codes(self.codes, each, Scheme(self.bits, fitting))
        raise UnsupportedError(DIGITS)


def blocks_by_value(
    file: OnnxFile, arrays: Mapping[str, Array]
) -> tuple[dict[str, Blocks], dict[str, str]]:
    """Return those of ARRAYS that FILE holds on codes, in MLX's parts; of those that have none, why.

    ARRAYS are weights by PyTorch's names, at the values that FILE has them at: these say which is which.
    """
    found, dense = dict[str, Blocks](), dict[str, str]()
    names = dict[tuple[Any, ...], list[str]]()
    for name, array in arrays.items():
        names.setdefault(_identity(array), []).append(name)
    for held, ends in file.codes().items():
        own = file.read(held)
        same = names.get(_identity(own), []) or names.get(_identity(own.swapaxes(-1, -2)), [])
        try:
            blocks = next(it for it in _each(file, held, ends) if _is(it, arrays, same))
            found |= dict.fromkeys(same, blocks)
        except UnsupportedError as error:
            dense |= dict.fromkeys(same, str(error))
        except StopIteration:
            dense |= dict.fromkeys(same, OTHERWISE)
    return found, dense


def _identity(array: Array) -> tuple[Any, ...]:
    """Return what equal arrays have in common."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
    return (array.shape, array.dtype.name, digest)


def _is(blocks: Blocks, arrays: Mapping[str, Array], names: list[str]) -> bool:
    """Say whether BLOCKS have the values of the ARRAYS called NAMES, which are equal."""
    wanted = arrays[names[0]] if names else np.empty(0)
    return blocks.shape == wanted.shape and np.array_equal(
        blocks.dense().astype(wanted.dtype), wanted
    )


def _each(file: OnnxFile, name: str, ends: tuple[int, int]) -> Iterator[Blocks]:
    """Yield weight NAME of FILE, its codes between ENDS, in MLX's parts, in the ways in which its rows may lie."""
    if packed := file.packed(name):
        held = packed.parts(file.part)
        if not np.array_equal(held.order, np.arange(len(held.order)) // packed.block):
            raise UnsupportedError(ORDER)
        if packed.shape[1] % packed.block:
            raise UnsupportedError(GROUPS)
        yield Line(held.codes, held.scales, held.biases(), packed.bits).blocks()
    else:
        yield from (it.blocks() for it in _lines(file, file.made_by(name), ends))


def _lines(file: OnnxFile, nodes: Sequence[Any], ends: tuple[int, int]) -> Iterator[Line]:
    """Yield what a lone ``DequantizeLinear`` makes, its rows along one axis and then along the other."""
    settings = {it.name: it.i for it in nodes[0].attribute}
    codes, scales, *zeros = (file.part(name) for name in nodes[0].input if name)
    if len(nodes) != 1 or codes.ndim != 2:
        raise UnsupportedError(OTHERWISE)
    zero = zeros[0].astype(np.float64) if zeros else np.zeros(scales.shape)
    axis, block = settings.get("axis", 1) % 2, settings.get("block_size", 0)
    for turned in (False, True):
        if block and (axis == 1) != turned:
            grids = [it.T if turned else it for it in (scales, zero)]
        elif not block and (scales.size == 1 or (axis == 0) != turned):
            grids = [it.reshape(-1, 1) for it in (scales, zero)]
        else:
            continue
        whole = np.ascontiguousarray(codes.T if turned else codes).astype(np.int16) - ends[0]
        along, nought = (np.broadcast_to(it, (len(whole), it.shape[1])) for it in grids)
        biases = (ends[0] - nought) * along.astype(np.float64)
        yield Line(whole.astype(np.uint8), along, biases, (ends[1] - ends[0]).bit_length())
