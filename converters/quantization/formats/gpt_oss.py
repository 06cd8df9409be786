"""``mxfp4`` of transformers, as gpt-oss has it: experts in blocks of 32 codes, the bytes of MLX.

``X_blocks`` is ``(expert, output, block, 16)``, two codes to a byte, and ``X_scales`` its scales. The weight
is seen as it is stored, outputs before inputs; the dense parameter of transformers has inputs first.
"""

from __future__ import annotations

from typing import Final

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, same
from ..mlx import part_name, stem
from ..scheme import Scheme
from ..view import Dequantized
from .base import METHOD, Format, Read, Section, Written, require, require_shape, section_of
from .modules import left_dense, others

NAME: Final = "mxfp4"
SCHEME: Final = Scheme(4, 32, NAME)
BLOCKS, SCALES = "_blocks", "_scales"
BYTES: Final = 16  # of a block


def read(raw: Checkpoint, _: Section) -> Read:
    """See RAW as MLX stores it: the same bytes under other names.

    Raises:
        BadInputError: scales are missing, or shapes are not those of blocks.
    """
    names = [name.removesuffix(BLOCKS) for name in raw.headers if name.endswith(BLOCKS)]
    if not names:
        raise BadInputError(f"{raw.path}: config.json says {NAME}; no tensor is called *{BLOCKS}")
    sources: dict[str, Source] = {}
    for name in names:
        sources |= _parts(raw, name)
    hidden = {f"{name}{ending}" for name in names for ending in (BLOCKS, SCALES)}
    sources |= {name: same(raw, name) for name in raw.headers if name not in hidden}
    return Read(Assembled(raw, sources), section_of(dict.fromkeys(names, SCHEME)))


def _parts(raw: Checkpoint, name: str) -> dict[str, Source]:
    blocks = raw.headers[name + BLOCKS]
    scales = require(raw.headers, name + SCALES, name)
    if blocks.dtype != "U8" or len(blocks.shape) < 3 or blocks.shape[-1] != BYTES:
        raise BadInputError(f"{name}{BLOCKS} is {blocks}, expected bytes in blocks of {BYTES}")
    if scales.dtype not in ("U8", "F8_E8M0"):
        raise BadInputError(f"{name}{SCALES} is {scales}, expected U8")
    require_shape(raw.headers, name + SCALES, blocks.shape[:-1])
    *lead, count, _ = blocks.shape
    words = Header("U32", (*lead, count * BYTES // 4))
    return {
        name: same(raw, name + BLOCKS, words),
        part_name(name, "scales"): same(raw, name + SCALES, scales._replace(dtype="U8")),
    }


def write(parts: Dequantized) -> Written:
    """Write the experts of PARTS that are mxfp4; the rest is dense.

    Raises:
        UnsupportedError: there are none.
    """
    names = [
        name
        for name, scheme in parts.schemes.items()
        if scheme == SCHEME and len(parts.headers[name].shape) == 3
    ]
    if not names:
        raise UnsupportedError(
            f"{NAME} holds experts in {SCHEME}; there are none. Choose another format"
        )
    sources = others(parts, frozenset(names))
    for name in names:
        *lead, columns = parts.headers[name].shape
        stored = parts.part_names(name)
        blocks = Header("U8", (*lead, columns // SCHEME.group_size, BYTES))
        sources[stem(name) + BLOCKS] = same(parts.raw, stored["weight"], blocks)
        sources[stem(name) + SCALES] = same(parts.raw, stored["scales"])
    section = {
        METHOD: NAME,
        "modules_to_not_convert": left_dense(parts.headers, frozenset(names)),
    }
    return Written(Assembled(parts.raw, sources), section, {})


FORMAT: Final = Format(read, write)
