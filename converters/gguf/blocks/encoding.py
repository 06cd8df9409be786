"""MLX's parts as rows of a GGUF file: every code as it is, every scale in float16."""

from __future__ import annotations

import numpy as np

from ...quantization import Blocks
from ...quantization.packing import unpack
from ...quantization.rounding import round_once
from ...quantization.workspace import Room
from ...values import Array
from .layouts import BLOCKS
from .nibbles import apart
from .routes import shifted

FOUR, FIVE, EIGHT = 4, 5, 8  # bits


def encoded(blocks: Blocks, kind: str, room: Room | None = None) -> Array:
    """Return BLOCKS, rows of a weight, as the ggml type KIND stores them, uint8 ``(rows, bytes)``.

    Args:
        blocks: parts of shape ``(rows, ...)``.
        kind: a type that :func:`routes` names for them; :func:`route` says what it would lose.
        room: where the result lies, if there is one.
    """
    layout = BLOCKS[kind]
    rows, columns = blocks.shape
    room = room or Room()
    made = room("blocks", (rows * columns // layout.size,), layout.record)
    if blocks.scheme.affine:
        repeat = blocks.scheme.group_size // layout.size
        _spread(made["d"], blocks.parts["scales"], repeat)
        if layout.center is None:
            _spread(made["m"], blocks.parts["biases"], repeat)
    else:
        made["d"] = blocks.parts["scales"].reshape(made["d"].shape)
    _put_codes(made, blocks, kind, room)
    return made.view(np.uint8).reshape(rows, -1)


def _spread(places: Array, numbers: Array, repeat: int) -> None:
    """Put NUMBERS into PLACES in float16, each as often as its group has blocks."""
    narrow = numbers.reshape(-1)
    if narrow.dtype != np.float16:
        narrow = round_once(narrow.astype(np.float32), np.dtype(np.float16))
    for first in range(repeat):
        places[first::repeat] = narrow


def _put_codes(made: Array, blocks: Blocks, kind: str, room: Room) -> None:
    layout, words = BLOCKS[kind], blocks.parts["weight"]
    if blocks.scheme.bits == layout.scheme.bits == FOUR:
        half = 8 if kind == "NVFP4" else 16
        packed = apart(np.ascontiguousarray(words).view(np.uint8).reshape(-1, half), half, room)
        made["q"] = packed.view(made.dtype["q"].base).reshape(made["q"].shape)
        return
    grouped = unpack(words, blocks.scheme.bits, room).reshape(-1, blocks.scheme.group_size)
    shifts = shifted(blocks.parts, blocks.scheme, kind).reshape(-1, 1)
    codes = (grouped + shifts).reshape(-1, layout.size)
    if layout.scheme.bits == EIGHT:
        made["q"] = (codes ^ np.uint8(0x80)).view(np.int8)
        return
    if layout.scheme.bits == FIVE:
        made["h"] = np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")
    low = codes & np.uint8(15)
    made["q"] = (low[:, :16] | low[:, 16:] << np.uint8(4)).view("V16").reshape(-1)
