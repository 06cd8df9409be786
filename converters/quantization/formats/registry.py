"""The quantized formats by name: one is read as its config says, or written as a user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint
from ..view import Dequantized
from . import awq, bitnet, bitsandbytes, compressed_tensors, fp8, gpt_oss, gptq, metal
from .base import METHOD, SECTION, Format, Read, Written

__all__ = ["METHODS", "Format", "Read", "Written", "read", "write"]

# As `quant_method` and the command line call them.
METHODS: Final[Mapping[str, Format]] = {
    "metal": metal.FORMAT,
    "compressed-tensors": compressed_tensors.FORMAT,
    "gptq": gptq.FORMAT,
    "awq": awq.FORMAT,
    "mxfp4": gpt_oss.FORMAT,
    "fp8": fp8.FORMAT,
    "bitnet": bitnet.FORMAT,
    "bitsandbytes": bitsandbytes.FORMAT,
}


def read(raw: Checkpoint, config: Mapping[str, Any]) -> Read:
    """See RAW, whose config is CONFIG, as MLX would store it.

    Raises:
        UnsupportedError: nobody here reads its ``quant_method``, or MLX has no place for it.
        BadInputError: tensors are missing or are not what the config says.
    """
    section = config.get(SECTION)
    if not isinstance(section, Mapping):
        raise BadInputError(f"config.json: {SECTION} is {section!r}, expected an object")
    return _format(section.get(METHOD)).read(raw, section)


def write(parts: Dequantized, method: str) -> Written:
    """Write PARTS, MLX's under PyTorch's names of modules, in the format METHOD.

    Raises:
        UnsupportedError: there is no such format, it is only read, or it cannot hold the weights.
    """
    chosen = _format(method)
    if chosen.write is None:
        writable = ", ".join(name for name, it in METHODS.items() if it.write)
        raise UnsupportedError(f"{method} is read, not written; written are {writable}")
    return chosen.write(parts)


def _format(method: object) -> Format:
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None:
        known = ", ".join(METHODS)
        raise UnsupportedError(f"{METHOD} {method!r} is unknown; known are {known}")
    return found
