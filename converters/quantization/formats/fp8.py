"""``fp8`` of transformers, as DeepSeek has it: E4M3 with a scale for each block of rows and columns.

Scales that are powers of two (``ue8m0``) make it mxfp8, each as often as it has groups of 32; with others
it is dense. Experts in four bits (int8, two to a byte) with such scales are mxfp4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, same
from ...values import Array
from ..mlx import SUFFIX, part_name, stem
from ..scheme import Scheme
from ..view import Dequantized
from .base import METHOD, SECTION, UNREAD, Format, Read, Section, Written, require_shape, section_of
from .floats import Blocked, replicated, scaled
from .modules import is_linear, left_dense, others

NAME: Final = "fp8"
EIGHT: Final = Scheme(8, 32, "mxfp8")
FOUR: Final = Scheme(4, 32, "mxfp4")
POWERS: Final = ("U8", "F8_E8M0")  # dtypes of scales that are exponents
CODED: Final = ("F8_E4M3", "I8")
ACTIVATIONS: Final = (".activation_scale", ".input_scale")
# a weight called `x.weight` or `x` -> what its scales may be called
CALLED: Final = ("{0}_scale_inv", "{1}.scale", "{1}.qscale_weight", "{0}_scale")


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it; dense where a scale is no power of two.

    Raises:
        BadInputError: scales are missing, or fit no blocks of the weight.
    """
    names = [name for name, header in raw.headers.items() if header.dtype in CODED]
    if not names:
        raise BadInputError(
            f"{raw.path}: config.json says {NAME}, and no tensor is in 8-bit floats"
        )
    scales = {name: _scales_of(raw, name) for name in names}
    sources: dict[str, Source] = {}
    schemes: dict[str, Scheme] = {}
    for name in names:
        made, scheme = _read(raw, name, scales[name], section)
        sources |= made
        schemes |= {name: scheme} if scheme else {}
    hidden = {*names, *scales.values()}
    for name in raw.headers:
        if name not in hidden and not name.endswith(ACTIVATIONS):
            sources[name] = same(raw, name)
    dense = [name for name in names if name not in schemes]
    return Read(Assembled(raw, sources), section_of(schemes), tuple(_notes(raw, dense)))


def _notes(raw: Checkpoint, dense: list[str]) -> Iterator[str]:
    if any(name.endswith(ACTIVATIONS) for name in raw.headers):
        yield UNREAD
    if dense:
        yield (
            f"{len(dense)} weights are dense in float32, {dense[0]} first: their scales are no powers"
            " of two"
        )


def _scales_of(raw: Checkpoint, name: str) -> str:
    called = [it.format(name, stem(name)) for it in CALLED]
    found = next((it for it in called if it in raw.headers), None)
    if found is None:
        raise BadInputError(f"{called[0]} is missing, which the quantized weight {name} needs")
    return found


def _read(
    raw: Checkpoint, name: str, scale: str, section: Section
) -> tuple[dict[str, Source], Scheme | None]:
    header, four = raw.headers[name], raw.headers[name].dtype == "I8"
    if len(header.shape) < 2:
        raise BadInputError(f"{name} is {header}, expected two axes or more")
    *lead, width = header.shape
    columns = width * 2 if four else width
    block = (1, FOUR.group_size) if four else _block(section, header, raw.headers[scale])
    found, scheme = raw.headers[scale], FOUR if four else EIGHT
    words = same(raw, name, Header("U32", (*lead, width // 4)))
    if found.dtype in POWERS and block == (1, 32) and columns % 32 == 0:
        groups = Header("U8", (*lead, columns // 32))
        require_shape(raw.headers, scale, groups.shape)
        return {name: words, part_name(name, "scales"): same(raw, scale, groups)}, scheme
    exponents = _exponents(raw, scale, section)
    if exponents is None or columns % 32 or block[1] % 32:
        if four:
            raise UnsupportedError(f"{name} has 4-bit codes and {scale} is {raw.headers[scale]}")
        return {name: scaled(raw, name, scale, block)}, None
    grid = Blocked((*lead, columns), block)
    return {name: words, part_name(name, "scales"): replicated(exponents, scale, grid)}, scheme


def _block(section: Section, header: Header, scales: Header) -> tuple[int, int]:
    """Return rows and columns of a block; without any in SECTION, a weight or a row is one."""
    named = section.get("weight_block_size")
    if named is None:
        return (header.shape[-2] if max(scales.shape, default=1) == 1 else 1, header.shape[-1])
    whole = isinstance(named, list | tuple) and all(type(it) is int and it > 0 for it in named)
    if not whole or len(named) != 2:
        raise BadInputError(
            f"config.json: {SECTION}: weight_block_size is {named!r}, expected two sizes"
        )
    return (named[0], named[1])


def _exponents(raw: Checkpoint, scale: str, section: Section) -> Array | None:
    """Return the scales as exponents of two, 127 for 1; ``None`` if they are not said to be such."""
    stored = raw.read(scale)
    if raw.headers[scale].dtype in POWERS:
        return stored.view(np.uint8)
    if section.get("scale_fmt") != "ue8m0":
        return None
    digits, powers = np.frexp(stored.astype(np.float64))
    if not (digits == 0.5).all() or powers.min(initial=0) < -126 or powers.max(initial=0) > 128:
        wrong = stored.reshape(-1)[np.argmax(digits.reshape(-1) != 0.5)]
        raise BadInputError(f"{scale} has {wrong}, and config.json says scale_fmt 'ue8m0'")
    exponents: Array = (powers + 126).astype(np.uint8)
    return exponents


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS that are mxfp8, in blocks of one row by 32 columns.

    Raises:
        UnsupportedError: there are none.
    """
    names = [
        name
        for name, scheme in parts.schemes.items()
        if scheme == EIGHT and is_linear(name, parts.headers[name])
    ]
    if not names:
        raise UnsupportedError(
            f"{NAME} holds linear layers in {EIGHT}; there are none. Choose another"
        )
    sources = others(parts, frozenset(names))
    for name in names:
        stored, shape = parts.part_names(name), parts.headers[name].shape
        scales = Header("F8_E8M0", (*shape[:-1], shape[-1] // EIGHT.group_size))
        sources[name] = same(parts.raw, stored["weight"], Header("F8_E4M3", shape))
        sources[stem(name) + SUFFIX + "_scale_inv"] = same(parts.raw, stored["scales"], scales)
    section = {
        METHOD: NAME,
        "activation_scheme": "dynamic",
        "weight_block_size": [1, EIGHT.group_size],
        "scale_fmt": "ue8m0",
        "modules_to_not_convert": left_dense(parts.headers, frozenset(names)),
    }
    return Written(Assembled(parts.raw, sources), section, {})


FORMAT: Final = Format(read, write)
