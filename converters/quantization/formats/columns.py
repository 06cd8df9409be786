"""Weights that lie the other way: inputs down, outputs across, as GPTQ and AWQ store them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, same, whole
from ...common.dtypes import FLOATS, NUMPY
from ...values import Array
from ..scheme import Scheme
from ..view import Dequantized
from .base import Read, Section, require, require_shape, section_of, whole_number
from .integers import SIZES, Fit, Grid, Integers, as_parts, fits_of, grids_of, zeros_of
from .modules import HEAD, is_linear

TENSORS = ("qweight", "qzeros", "scales", "g_idx")
Opened = Callable[["Module"], Integers]


class Module(NamedTuple):
    """A quantized module of such a checkpoint.

    Attributes:
        raw: the checkpoint.
        path: of the module.
        bits: of a code.
        shape: of the weight, outputs by inputs.
        group: inputs that share a scale.
        order: the group of each input.
    """

    raw: Checkpoint
    path: str
    bits: int
    shape: tuple[int, int]
    group: int
    order: Array

    def read(self, tensor: str) -> Array:
        """Return its TENSOR whole."""
        return self.raw.read(f"{self.path}.{tensor}")

    def grid(self, tensor: Callable[[], Array], size: int) -> Grid:
        """Return rows of a TENSOR of groups by outputs, for groups of SIZE columns."""
        place = self.order[::size]
        return lambda rows: np.ascontiguousarray(tensor()[:, rows][place].T)

    @property
    def size(self) -> int:
        """Columns, side by side from the first on, that share a scale: 1 if they lie mixed."""
        for size in sorted(SIZES, reverse=True):
            runs = self.order.reshape(-1, size) if len(self.order) % size == 0 else None
            if runs is not None and bool((runs == runs[:, :1]).all()):
                return size
        return 1


def read_modules(raw: Checkpoint, section: Section, inputs: int, opened: Opened) -> Read:
    """See RAW as MLX stores it.

    Args:
        raw: the checkpoint.
        section: its `quantization_config`.
        inputs: of the two axes of ``qweight`` the one with the inputs is packed by the bits (32), or
            has one row for each (1).
        opened: gives the codes, scales and zero points of a module.

    Raises:
        BadInputError: a tensor is missing or has a shape that contradicts another or SECTION.
    """
    paths = [it.removesuffix(".qweight") for it in raw.headers if it.endswith(".qweight")]
    if not paths:
        raise BadInputError(
            f"{raw.path}: config.json says quantized; no tensor is called *.qweight"
        )
    sources: dict[str, Source] = {}
    schemes: dict[str, Scheme] = {}
    mixed: list[str] = []
    for path in paths:
        module = _module(raw, path, section, inputs)
        made, scheme = as_parts(path, opened(module))
        sources |= made
        schemes |= {f"{path}.weight": scheme} if scheme else {}
        mixed += [] if scheme else [path]
    hidden = {f"{path}.{tensor}" for path in paths for tensor in TENSORS}
    sources |= {name: same(raw, name) for name in raw.headers if name not in hidden}
    return Read(Assembled(raw, sources), section_of(schemes), tuple(_notes(mixed)))


def _notes(mixed: list[str]) -> Iterator[str]:
    yield "biases are float32, which holds whole zero points times 16-bit scales exactly"
    if mixed:
        yield (
            f"{len(mixed)} weights are dense in float32, {mixed[0]} first: their columns are not in"
            " the order of their groups, or MLX has no such groups"
        )


def _module(raw: Checkpoint, path: str, section: Section, packed: int) -> Module:
    headers, bits = raw.headers, whole_number(section, "bits")
    words = require(headers, f"{path}.qweight", path)
    scales = require(headers, f"{path}.scales", path)
    _require_integers(require(headers, f"{path}.qzeros", path), f"{path}.qzeros", "I32")
    if words.dtype != "I32" or len(words.shape) != 2 or scales.dtype not in FLOATS:
        raise BadInputError(f"{path}: qweight is {words}, scales {scales}; expected I32 and floats")
    columns = words.shape[0] * 32 // bits if packed == 32 else words.shape[0]
    count = words.shape[1] if packed == 32 else words.shape[1] * 32 // bits
    named = section.get("group_size")
    group = columns if named in (-1, None) else whole_number(section, "group_size")
    groups = -(-columns // group)
    require_shape(headers, f"{path}.scales", (groups, count))
    require_shape(headers, f"{path}.qzeros", (groups, -(-count * bits // 32)))
    return Module(raw, path, bits, (count, columns), group, _order(raw, path, columns, group))


def _require_integers(header: Header, name: str, *known: str) -> None:
    if header.dtype not in known:
        raise BadInputError(f"{name} is {header}, expected {' or '.join(known)}")


def _order(raw: Checkpoint, path: str, columns: int, group: int) -> Array:
    name = f"{path}.g_idx"
    if name not in raw.headers:
        return np.arange(columns) // group
    require_shape(raw.headers, name, (columns,))
    _require_integers(raw.headers[name], name, "I32", "I64")
    order = raw.read(name).astype(np.int64)
    if order.min(initial=0) < 0 or order.max(initial=0) >= -(-columns // group):
        raise BadInputError(f"{name} names group {order.max()}; there are {-(-columns // group)}")
    return order


class Chosen(NamedTuple):
    """What is written: linear layers of one scheme, and how their zero points fit."""

    scheme: Scheme
    fits: Mapping[str, Fit]
    dtype: str

    @property
    def losses(self) -> dict[str, float]:
        """The losses of the weights that have one."""
        return {name: fit.loss for name, fit in self.fits.items() if fit.loss}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the scales."""
        line = (
            f"scales are {NUMPY[self.dtype]}, as float16 holds them not; some readers expect that"
        )
        return () if self.dtype == "F16" else (line,)


def choose(parts: Dequantized, method: str, widths: tuple[int, ...]) -> Chosen:
    """Return the linear layers of PARTS, without the head, that have its commonest scheme.

    Raises:
        UnsupportedError: there is none of one of WIDTHS.
    """
    fitting = {
        name: scheme
        for name, scheme in parts.schemes.items()
        if scheme.affine
        and scheme.bits in widths
        and is_linear(name, parts.headers[name])
        and name != f"{HEAD}.weight"
        and parts.headers[name].shape[0] * scheme.bits % 32 == 0
    }
    if not fitting:
        known = ", ".join(map(str, widths))
        found = ", ".join(sorted({str(scheme) for scheme in parts.schemes.values()})) or "none"
        raise UnsupportedError(
            f"{method} holds linear layers of affine codes of {known} bits; there are {found}."
            " Choose another format or --dequantize"
        )
    [(scheme, _)] = Counter(fitting.values()).most_common(1)
    fits = fits_of(parts, (name for name, it in fitting.items() if it == scheme))
    dtypes = {parts.raw.headers[parts.part_names(name)["scales"]].dtype for name in fits}
    wide = sorted(dtypes)[-1] if len(dtypes) == 1 else "F32"
    return Chosen(scheme, fits, "F16" if all(fit.narrow for fit in fits.values()) else wide)


class Upright(NamedTuple):
    """A weight of MLX with positive scales: where one is negative, code Q becomes M - Q.

    So does the zero point, so that the values stay as they are.
    """

    parts: Dequantized
    name: str

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.parts.schemes[self.name].bits

    @property
    def groups(self) -> tuple[int, ...]:
        """Outputs by groups."""
        return self.parts.raw.headers[self.parts.part_names(self.name)["scales"]].shape

    def words(self) -> Array:
        """Return the packed codes whole, outputs by words."""
        stored = self.parts.raw.read(self.parts.part_names(self.name)["weight"])
        scales, _ = self._grids()
        turned = np.where(scales < 0, np.uint32(0xFFFFFFFF), np.uint32(0))[..., None]
        upright: Array = (stored.reshape(*self.groups, -1) ^ turned).reshape(stored.shape)
        return upright

    def scales(self, dtype: str) -> Array:
        """Return the scales, groups by outputs."""
        scales, _ = self._grids()
        return np.ascontiguousarray(np.abs(scales.astype(np.float64)).astype(NUMPY[dtype]).T)

    def zeros(self) -> Array:
        """Return the zero points, groups by outputs."""
        scales, biases = self._grids()
        zeros = zeros_of(scales, biases, self.bits)
        largest = np.uint8((1 << self.bits) - 1)
        return np.ascontiguousarray(np.where(scales < 0, largest - zeros, zeros).T)

    def _grids(self) -> tuple[Array, Array]:
        return grids_of(self.parts, self.name, slice(0, self.groups[0]))


def scales_source(weight: Upright, dtype: str) -> Source:
    """Return the scales of WEIGHT as a tensor of groups by outputs."""
    rows, groups = weight.groups
    return whole(Header(dtype, (groups, rows)), lambda: weight.scales(dtype))
