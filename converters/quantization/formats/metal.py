"""``metal`` of transformers: MLX's affine codes, byte for byte, under almost the same names.

See `transformers/integrations/metal_quantization.py`. One width of 2, 4 or 8 bits and one group size
for all linear layers; the biases are called ``qbiases``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint
from ...checkpoints.assembled import Assembled, Source, same
from ...common.dtypes import FLOATS, NUMPY
from ..mlx import SUFFIX, part_name, stem
from ..scheme import Scheme
from ..view import Dequantized
from .base import (
    METHOD,
    Format,
    Read,
    Section,
    Written,
    require,
    require_shape,
    section_of,
    whole_number,
)
from .modules import is_linear, left_dense, others

NAME: Final = "metal"
BIASES: Final = ".qbiases"
WIDTHS: Final = (2, 4, 8)  # what MetalConfig takes


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it: the biases under their other name.

    Raises:
        BadInputError: a part is missing or has another shape than SECTION says.
        UnsupportedError: MLX has no such group size.
    """
    scheme = Scheme(whole_number(section, "bits"), whole_number(section, "group_size"))
    weights = [_weight(raw, name, scheme) for name in raw.headers if name.endswith(BIASES)]
    if not weights:
        raise BadInputError(
            f"{raw.path}: config.json says {NAME}, and no tensor is called *{BIASES}"
        )
    sources = {
        name.removesuffix(BIASES) + ".biases" if name.endswith(BIASES) else name: same(raw, name)
        for name in raw.headers
    }
    return Read(Assembled(raw, sources), section_of(dict.fromkeys(weights, scheme)))


def _weight(raw: Checkpoint, biases: str, scheme: Scheme) -> str:
    """Return the name of the weight that BIASES belong to, its parts checked."""
    path = biases.removesuffix(BIASES)
    weight = path + SUFFIX
    words = require(raw.headers, weight, path)
    scales = require(raw.headers, f"{path}.scales", path)
    if words.dtype != "U32" or len(words.shape) < 2:
        raise BadInputError(f"{weight} is {words}, expected 32-bit words of codes in two axes")
    columns = words.shape[-1] * 32 // scheme.bits
    if columns % scheme.group_size:
        raise BadInputError(f"{weight} has {columns} columns, no multiple of the group of {scheme}")
    for name, header in ((f"{path}.scales", scales), (biases, raw.headers[biases])):
        require_shape(raw.headers, name, (*words.shape[:-1], columns // scheme.group_size))
        if header.dtype not in FLOATS:
            raise BadInputError(f"{name} is {header}, expected floating-point numbers")
    return weight


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS that have its commonest scheme; the rest is dense.

    Raises:
        UnsupportedError: no linear layer has a scheme that the format knows.
    """
    fitting = {
        name: scheme
        for name, scheme in parts.schemes.items()
        if scheme.affine and scheme.bits in WIDTHS and is_linear(name, parts.headers[name])
    }
    if not fitting:
        found = ", ".join(sorted({str(scheme) for scheme in parts.schemes.values()}))
        raise UnsupportedError(
            f"{NAME} holds linear layers of 2, 4 or 8-bit affine codes; there are {found or 'none'}."
            " Choose another format or --dequantize"
        )
    [(chosen, _)] = Counter(fitting.values()).most_common(1)
    quantized = [name for name, scheme in fitting.items() if scheme == chosen]
    sources = others(parts, quantized) | {
        full: source for name in quantized for full, source in _parts(parts, name).items()
    }
    section = {
        METHOD: NAME,
        "bits": chosen.bits,
        "group_size": chosen.group_size,
        "modules_to_not_convert": left_dense(parts.headers, quantized),
    }
    return Written(Assembled(parts.raw, sources), section, {}, _notes(parts, quantized))


def _parts(parts: Dequantized, name: str) -> dict[str, Source]:
    names = parts.part_names(name)
    return {
        name: same(parts.raw, names["weight"]),
        part_name(name, "scales"): same(parts.raw, names["scales"]),
        stem(name) + BIASES: same(parts.raw, names["biases"]),
    }


def _notes(parts: Dequantized, quantized: list[str]) -> tuple[str, ...]:
    dense = [name for name in parts.schemes if name not in quantized]
    if not dense:
        return ()
    dtype = NUMPY[parts.headers[dense[0]].dtype]
    return (
        f"{len(dense)} quantized weights are dense in {NAME}, {dense[0]} first, rounded once to {dtype}",
    )


FORMAT: Final = Format(read, write)
