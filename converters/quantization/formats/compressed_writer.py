"""compressed-tensors, written: the words of MLX as they are, zero points in place of biases.

Its packed integers are one stream of bits a row as MLX's are, of any width from 1 to 8
(`compressed_tensors/compressors/pack_quantized/helpers.py`); mxfp4, mxfp8 and nvfp4 have the same bytes
too. Scales keep their sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints import Header
from ...checkpoints.assembled import Assembled, Rows, Source, computed, fixed, same
from ...values import Array
from ..mlx import SUFFIX, stem
from ..packing import pack_columns
from ..scheme import Scheme
from ..view import Dequantized
from .base import METHOD, Written
from .integers import Fit, fits_of, grids_of, zeros_of
from .modules import is_linear, left_dense, others

NAME: Final = "compressed-tensors"
PACKED: Final = "pack-quantized"
# mode of MLX -> format, what its weights are described by besides bits and group, dtype of its scales
FLOATS: Final[Mapping[str, tuple[str, Mapping[str, Any], str]]] = {
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"strategy": "group", "scale_dtype": "torch.uint8"},
        "U8",
    ),
    "mxfp8": ("mxfp8-quantized", {"strategy": "group", "scale_dtype": "torch.uint8"}, "U8"),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn"},
        "F8_E4M3",
    ),
}
EXPERTS: Final = ".experts."
ROWS: Final = 32  # whose zero points, of any width, fill whole words


class Kind(NamedTuple):
    """What the weights of one group of the config have in common."""

    scheme: Scheme
    symmetric: bool

    @property
    def format(self) -> str:
        """The format of their tensors."""
        return PACKED if self.scheme.affine else FLOATS[self.scheme.mode][0]

    def record(self, targets: list[str]) -> dict[str, Any]:
        """Return the group of the config that TARGETS belong to."""
        weights = {
            "num_bits": self.scheme.bits,
            "type": "int" if self.scheme.affine else "float",
            "symmetric": self.symmetric,
            "group_size": self.scheme.group_size,
            "strategy": "group",
            "dynamic": False,
        }
        more = {} if self.scheme.affine else FLOATS[self.scheme.mode][1]
        return {"targets": targets, "weights": {**weights, **more}, "format": self.format}


def write(parts: Dequantized) -> Written:
    """Write the linear layers of PARTS; the rest is dense.

    Raises:
        UnsupportedError: no linear layer is quantized.
    """
    names = [
        name
        for name in parts.schemes
        if is_linear(name, parts.headers[name]) and "global_scale" not in parts.part_names(name)
    ]
    if not names:
        raise UnsupportedError(
            f"{NAME} holds quantized linear layers, and there are none; convert without it"
        )
    fits = fits_of(parts, (name for name in names if parts.schemes[name].affine))
    kinds = _kinds(parts, names, fits)
    sources = others(parts, frozenset(names))
    for name in names:
        sources |= _sources(parts, name, kinds[name])
    losses = {name: fit.loss for name, fit in fits.items() if fit.loss}
    notes = tuple(_notes(kinds))
    return Written(Assembled(parts.raw, sources), _section(parts, kinds), losses, notes)


def _notes(kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Say which weights transformers does not load as they are stored."""
    experts = [name for name, kind in kinds.items() if EXPERTS in name and not kind.symmetric]
    if experts:
        yield (
            f"{len(experts)} weights of experts have zero points, {experts[0]} first; transformers loads"
            " experts of compressed-tensors without alone"
        )


def _kinds(parts: Dequantized, names: list[str], fits: Mapping[str, Fit]) -> dict[str, Kind]:
    """Return the kind of each weight; one scheme is symmetric as a whole or not at all."""
    uneven = {parts.schemes[name] for name, fit in fits.items() if not fit.symmetric}
    schemes = {name: parts.schemes[name] for name in names}
    return {name: Kind(scheme, scheme not in uneven) for name, scheme in schemes.items()}


def _section(parts: Dequantized, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    groups: dict[Kind, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind, []).append(stem(name))
    formats = {kind.format for kind in groups}
    return {
        METHOD: NAME,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{number}": kind.record(["Linear"] if len(groups) == 1 else paths)
            for number, (kind, paths) in enumerate(groups.items())
        },
        "ignore": left_dense(parts.headers, frozenset(kinds), plain=True),
    }


def _sources(parts: Dequantized, name: str, kind: Kind) -> dict[str, Source]:
    """Return the tensors of the weight NAME in the format, by name."""
    names, path, shape = parts.part_names(name), stem(name), parts.headers[name].shape
    words, scales = (parts.raw.headers[names[part]] for part in ("weight", "scales"))
    if kind.scheme.affine:
        made = {
            f"{path}.weight_packed": same(parts.raw, names["weight"], words._replace(dtype="I32")),
            f"{path}.weight_scale": same(parts.raw, names["scales"]),
            f"{path}.weight_shape": fixed(np.array(shape, np.int64)),
        }
        return made if kind.symmetric else made | {f"{path}.weight_zero_point": _zeros(parts, name)}
    lead = words.shape[:-1]
    dtype = FLOATS[kind.scheme.mode][2]
    made = {f"{path}.weight_scale": same(parts.raw, names["scales"], scales._replace(dtype=dtype))}
    if kind.scheme.bits == 8:
        codes = Header("F8_E4M3", shape)
        return made | {path + SUFFIX: same(parts.raw, names["weight"], codes)}
    halves = Header("U8", (*lead, shape[-1] // 2))
    made[f"{path}.weight_packed"] = same(parts.raw, names["weight"], halves)
    if kind.scheme.mode == "nvfp4":
        made[f"{path}.weight_global_scale"] = fixed(np.ones(1, np.float32))
    return made


def _zeros(parts: Dequantized, name: str) -> Source:
    """Return the zero points of the weight NAME, packed along its rows."""
    bits = parts.schemes[name].bits
    count, groups = parts.raw.headers[parts.part_names(name)["scales"]].shape
    return computed(Header("I32", (-(-count * bits // 32), groups)), _zero_rows(parts, name, count))


def _zero_rows(parts: Dequantized, name: str, count: int) -> Rows:
    bits = parts.schemes[name].bits

    def rows_of(rows: slice) -> Iterator[Array]:
        groups = parts.raw.headers[parts.part_names(name)["scales"]].shape[-1]
        unit = max(1, (1 << 18) // (ROWS * groups))  # of `bits` rows of words each
        first = rows.start // bits
        for start in range(first, -(-rows.stop // bits), unit):
            begin, end = start * ROWS, min((start + unit) * ROWS, count)
            scales, biases = grids_of(parts, name, slice(begin, end))
            packed = _packed_down(zeros_of(scales, biases, bits), bits)
            at = start * bits
            yield packed[max(rows.start - at, 0) : rows.stop - at]

    return rows_of


def _packed_down(zeros: Array, bits: int) -> Array:
    """Return ZEROS, (rows, groups), packed along the rows; the last words are filled up with 0."""
    missing = -len(zeros) % ROWS
    padded = np.pad(zeros, ((0, missing), (0, 0))) if missing else zeros
    words = _shifted(padded, bits) if ROWS % bits == 0 else pack_columns(padded, bits).T
    return np.ascontiguousarray(words[: -(-len(zeros) * bits // 32)]).view(np.int32)


def _shifted(zeros: Array, bits: int) -> Array:
    """Return ZEROS packed along the rows, where a word holds whole ones; many times faster."""
    apart = zeros.reshape(-1, 32 // bits, zeros.shape[-1])
    words = apart[:, 0].astype(np.uint32)
    for place in range(1, 32 // bits):
        words |= apart[:, place].astype(np.uint32) << np.uint32(place * bits)
    return words
