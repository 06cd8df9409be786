"""GPTQ: one stream of bits down each output, zero points packed along the outputs.

Version 1 stores zero points less one, as AutoGPTQ did; version 2 stores them. Columns may lie in another
order than their groups (``g_idx``): what stays together in 32, 64 or 128 is exact in MLX, the rest dense.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, computed, fixed, whole
from ...values import Array
from ..mlx import each_block, stem
from ..packing import pack
from ..view import Dequantized
from .base import METHOD, Format, Read, Section, Written, require_truth
from .columns import Chosen, Module, Upright, choose, read_modules, scales_source
from .integers import Integers, unpacked
from .modules import HEAD, is_linear, others

NAME: Final = "gptq"
WIDTHS: Final = (2, 3, 4, 8)
VERSIONS: Final = {"gptq": 1, "gptq_v2": 0}  # checkpoint_format -> what is stored less


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it; dense where its columns are not in the order of their groups.

    Raises:
        BadInputError: a tensor is missing, or contradicts another or SECTION.
        UnsupportedError: the version or the width is unknown.
    """
    version = section.get("checkpoint_format", section.get("format", "gptq"))
    if not isinstance(version, str) or version not in VERSIONS:
        raise UnsupportedError(
            f"config.json: checkpoint_format {version!r} is unknown; known are {', '.join(VERSIONS)}"
        )
    if section.get("bits") not in WIDTHS:
        raise UnsupportedError(f"{NAME} of {section.get('bits')!r} bits is unknown; known {WIDTHS}")
    require_truth(section, "sym", "desc_act")
    return read_modules(
        raw, section, 32, lambda module: _opened(module, VERSIONS[version], section)
    )


def _opened(module: Module, less: int, section: Section) -> Integers:
    rows, columns = module.shape
    size, middle = module.size, 1 << (module.bits - 1)

    def zeros() -> Array:
        return unpacked(module.read("qzeros"), module.bits, rows).astype(np.int32) + less

    def words(part: slice) -> Iterator[Array]:
        packed = module.read("qweight").view(np.uint32)
        for block in each_block(part, columns):
            yield np.ascontiguousarray(packed[:, block].T)

    def codes(part: slice) -> Iterator[Array]:
        return (unpacked(found, module.bits, columns) for found in words(part))

    if symmetric := bool(section.get("sym")):
        _require_middle(module, zeros(), middle)
    return Integers(
        module.shape,
        module.bits,
        size,
        codes,
        module.grid(lambda: module.read("scales"), size),
        None if symmetric else module.grid(zeros, size),
        module.raw.headers[f"{module.path}.scales"].dtype,
        computed(Header("U32", (rows, columns * module.bits // 32)), words),
    )


def _require_middle(module: Module, zeros: Array, middle: int) -> None:
    """Refuse ZEROS of MODULE, which the config calls symmetric, that are not the MIDDLE of the codes.

    Some kernels then compute with the middle, and others with what is stored.
    """
    if len(others := zeros[zeros != middle]):
        raise BadInputError(
            f"{module.path}: config.json says sym; {module.path}.qzeros has zero points of {others[0]},"
            f" not {middle}: set sym to false, or checkpoint_format to the version that wrote it"
        )


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS that have its commonest scheme; the rest is dense.

    Version 1, which everybody reads, unless a zero point is 0, which it cannot store.

    Raises:
        UnsupportedError: no linear layer has a width that the format knows.
    """
    chosen = choose(parts, NAME, WIDTHS)
    less = int(all(fit.lowest > 0 for fit in chosen.fits.values()))
    sources = others(parts, frozenset(chosen.fits))
    for name in chosen.fits:
        sources |= _tensors(Upright(parts, name), chosen, less)
    return Written(
        Assembled(parts.raw, sources), _section(parts, chosen, less), chosen.losses, chosen.notes
    )


def _tensors(weight: Upright, chosen: Chosen, less: int) -> dict[str, Source]:
    path, bits, (rows, groups) = stem(weight.name), weight.bits, weight.groups
    columns = groups * chosen.scheme.group_size

    def zeros() -> Array:
        return pack(weight.zeros() - np.uint8(less), bits).view(np.int32)

    def words() -> Array:
        return np.ascontiguousarray(weight.words().T).view(np.int32)

    order = np.arange(columns, dtype=np.int32) // np.int32(chosen.scheme.group_size)
    return {
        f"{path}.qweight": whole(Header("I32", (columns * bits // 32, rows)), words),
        f"{path}.qzeros": whole(Header("I32", (groups, rows * bits // 32)), zeros),
        f"{path}.scales": scales_source(weight, chosen.dtype),
        f"{path}.g_idx": fixed(order),
    }


def _is_turned(parts: Dequantized, name: str) -> bool:
    """Tell whether a scale of NAME is negative, whose zero point is not the middle as it is written."""
    scales = parts.raw.read(parts.part_names(name)["scales"])
    return bool((scales.astype(np.float32) < 0).any())


def _section(parts: Dequantized, chosen: Chosen, less: int) -> dict[str, object]:
    dense = [
        stem(name)
        for name, header in parts.headers.items()
        if name not in chosen.fits and is_linear(name, header) and stem(name) != HEAD
    ]
    [version] = (name for name, it in VERSIONS.items() if it == less)
    return {
        METHOD: NAME,
        "bits": chosen.scheme.bits,
        "group_size": chosen.scheme.group_size,
        "desc_act": False,
        "sym": all(fit.symmetric for fit in chosen.fits.values())
        and not any(_is_turned(parts, name) for name in chosen.fits),
        "lm_head": False,
        "checkpoint_format": version,
        "dynamic": {f"-:^{re.escape(path)}$": {} for path in dense},
    }


FORMAT: Final = Format(read, write)
