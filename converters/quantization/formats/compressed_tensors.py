"""compressed-tensors, read: packed and plain integers, fp8, mxfp4, mxfp8 and nvfp4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Rows, Source, computed, count_rows, read_rows, same
from ...common.dtypes import FLOATS
from ...values import Array
from ..blocks import Blocks
from ..mlx import each_block
from ..scheme import Scheme
from .base import UNREAD, Format, Read, Section, require, require_shape, section_of
from .compressed.says import matches, part_of, require_true, says_of
from .compressed_writer import NAME, write
from .floats import scaled
from .integers import Grid, Integers, as_parts, unpacked

ENDINGS: Final = (
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_global_scale",
    "weight_g_idx",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
)
Found = tuple[dict[str, Source], Scheme | None]


class Module(NamedTuple):
    """A quantized module: where it is stored and what the config says of its weight."""

    raw: Checkpoint
    path: str
    says: Mapping[str, Any]

    def name(self, ending: str) -> str:
        """Return the name of its tensor ENDING."""
        return f"{self.path}.{ending}"

    def has(self, ending: str) -> bool:
        """Say whether there is its tensor ENDING."""
        return self.name(ending) in self.raw.headers

    def header(self, ending: str) -> Header:
        """Return the header of its tensor ENDING; refuse a module without it."""
        return require(self.raw.headers, self.name(ending), self.path)

    def rows(self, ending: str, rows: slice) -> Array:
        """Return ROWS of its tensor ENDING."""
        return read_rows(self.raw, self.name(ending), rows)


def read(raw: Checkpoint, section: Section) -> Read:
    """See RAW as MLX stores it; dense where MLX has no scheme for a weight.

    Raises:
        BadInputError: a tensor is missing, has another shape or contradicts SECTION.
        UnsupportedError: MLX cannot hold a number.
    """
    paths = [
        name.removesuffix(".weight_scale") for name in raw.headers if name.endswith(".weight_scale")
    ]
    if not paths:
        raise BadInputError(
            f"{raw.path}: config.json says {NAME}; no tensor is called *.weight_scale"
        )
    _refuse_contradictions(raw, section, paths)
    modules = [Module(raw, path, says_of(section, path)) for path in paths]
    for module in modules:
        ending = "weight_packed" if module.has("weight_packed") else "weight"
        require_true(module.path, module.says, ending)
    sources: dict[str, Source] = {}
    schemes: dict[str, Scheme] = {}
    for module in modules:
        made, scheme = _reader(module)(module)
        sources |= made
        schemes |= {module.name("weight"): scheme} if scheme else {}
    hidden = {module.name(ending) for module in modules for ending in (*ENDINGS, "weight")}
    for name in raw.headers:
        if name not in hidden:
            sources[name] = same(raw, name)
    return Read(Assembled(raw, sources), section_of(schemes), tuple(_notes(modules, schemes)))


def _notes(modules: list[Module], schemes: Mapping[str, Scheme]) -> Iterator[str]:
    dense = [module for module in modules if module.name("weight") not in schemes]
    if dense:
        yield f"{len(dense)} weights are dense in float32, {dense[0].path} first: MLX has no such scheme"
    if any(module.has(ending) for module in modules for ending in ENDINGS[-3:]):
        yield UNREAD
    if any(module.has("weight_zero_point") for module in modules):
        yield "biases are float32, which holds whole zero points times 16-bit scales exactly"


def _refuse_contradictions(raw: Checkpoint, section: Section, paths: list[str]) -> None:
    """Refuse a target that two groups of SECTION describe otherwise, and one of PATHS that it ignores."""
    groups, ignored = section.get("config_groups"), section.get("ignore")
    first: dict[str, tuple[str, Any]] = {}
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        weights = part_of(group, "weights")
        for target in map(str, part_of(group, "targets") or ()):
            before, other = first.setdefault(target, (name, weights))
            if other != weights:
                raise BadInputError(
                    f"config.json: {target!r} is a target of {before} and {name}, which describe other"
                    " weights; keep the one that is true"
                )
    for path in paths:
        if isinstance(ignored, list) and any(matches(path, target) for target in ignored):
            stored = ", ".join(
                f"{path}.{it}" for it in ENDINGS[:2] if f"{path}.{it}" in raw.headers
            )
            raise BadInputError(f"{path}: config.json has it under `ignore`; stored is {stored}")


def _reader(module: Module) -> Callable[[Module], Found]:
    """Return what reads MODULE, which its tensors tell; what the config says must agree."""
    bits, kind = module.says.get("num_bits"), module.says.get("type", "int")
    stored = module.header("weight_packed" if module.has("weight_packed") else "weight")
    found: tuple[str, Callable[[Module], Found]] | None = {
        ("I32", True): ("int", _packed),
        ("U8", True): ("float", _halves),
        ("I8", False): ("int", _plain),
        ("F8_E4M3", False): ("float", _eights),
    }.get((stored.dtype, module.has("weight_packed")))
    if found is None or found[0] != kind or type(bits) is not int or not 1 <= bits <= 8:
        raise BadInputError(
            f"{module.path}: config.json says {bits!r} bits of type {kind!r}; stored is {stored}"
        )
    return found[1]


def _packed(module: Module) -> Found:
    """Read integers that are packed as MLX packs them."""
    bits, packed = module.says["num_bits"], module.header("weight_packed")
    shape = module.header("weight_shape")
    if shape != Header("I64", (2,)) or len(packed.shape) != 2:
        raise BadInputError(f"{module.name('weight_shape')} is {shape}, expected I64[2]")
    count, columns = (int(size) for size in module.raw.read(module.name("weight_shape")))
    require_shape(
        module.raw.headers, module.name("weight_packed"), (count, -(-columns * bits // 32))
    )

    def codes(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, columns):
            yield unpacked(module.rows("weight_packed", block), bits, columns)

    weight = _integers(module, (count, columns), codes, bits)
    words = same(module.raw, module.name("weight_packed"), Header("U32", packed.shape))
    return as_parts(module.path, weight._replace(words=words))


def _plain(module: Module) -> Found:
    """Read integers of a byte each; MLX's begin at 0."""
    header = module.header("weight")
    count, columns = count_rows(header), header.shape[-1]
    if len(header.shape) != 2:
        raise BadInputError(f"{module.name('weight')} is {header}, expected two axes")

    def codes(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, columns):
            yield module.rows("weight", block).view(np.uint8) ^ np.uint8(0x80)

    return as_parts(module.path, _integers(module, (count, columns), codes, 8))


def _integers(module: Module, shape: tuple[int, int], codes: Rows, bits: int) -> Integers:
    """Return the weight of MODULE with SHAPE and CODES of BITS, its scales and zero points found."""
    scales = module.header("weight_scale")
    if scales.dtype not in FLOATS:
        raise BadInputError(f"{module.name('weight_scale')} is {scales}, expected floats")
    groups = scales.shape[-1] if len(scales.shape) == 2 else 1
    group = shape[1] // max(groups, 1)
    if group * groups != shape[1] or not group:
        raise BadInputError(
            f"{module.name('weight_scale')} is {scales}, no groups of a weight {list(shape)}"
        )
    _check_grid(module, "weight_scale", shape[0], groups)
    named, strategy = module.says.get("group_size"), module.says.get("strategy")
    if strategy in ("channel", "tensor") and groups != 1:
        raise BadInputError(
            f"{module.path}: config.json says {strategy!r}; {module.name('weight_scale')} has {groups} groups"
        )
    if strategy == "group" and named != group:
        raise BadInputError(
            f"{module.path}: config.json says groups of {named}; stored are {group}"
        )
    _check_order(module, group)

    def scale_rows(rows: slice) -> Array:
        return _spread(module, "weight_scale", rows, groups)

    symmetric = module.says.get("symmetric", True)
    if symmetric and module.has("weight_zero_point") and _is_uneven(module, shape[0], groups, bits):
        raise BadInputError(
            f"{module.path}: config.json says symmetric; {module.name('weight_zero_point')} has others"
            " than the middle of the codes"
        )
    zeros = None if symmetric else _zeros(module, shape[0], groups, bits)
    return Integers(shape, bits, group, codes, scale_rows, zeros, scales.dtype)


def _check_grid(module: Module, ending: str, count: int, groups: int) -> None:
    """Check that a small tensor has COUNT rows of GROUPS numbers, or one for all."""
    header = module.header(ending)
    known = {(count, groups), (1, groups), (groups,), *([()] if groups == 1 else [])}
    if header.shape not in known:
        raise BadInputError(f"{module.name(ending)} is {header}, expected shape {[count, groups]}")


def _spread(module: Module, ending: str, rows: slice, groups: int) -> Array:
    """Return ROWS of a small tensor, which has one row for all where it is one of the tensor."""
    header = module.header(ending)
    if len(header.shape) < 2 or header.shape[0] == 1:
        whole = module.raw.read(module.name(ending)).reshape(1, groups)
        return np.repeat(whole, rows.stop - rows.start, axis=0)
    return module.rows(ending, rows)


def _zeros(module: Module, count: int, groups: int, bits: int) -> Grid:
    """Return the zero points of rows; they are packed down the rows, or a signed byte each."""
    ending, middle = "weight_zero_point", np.int32(1 << (bits - 1))
    name, header = module.name(ending), module.header(ending)
    if header.dtype == "I8":
        _check_grid(module, ending, count, groups)
        return lambda rows: _spread(module, ending, rows, groups) + middle
    require_shape(module.raw.headers, name, (-(-count * bits // 32), groups))
    if header.dtype != "I32":
        raise BadInputError(f"{name} is {header}, expected I32 or I8")

    def rows_of(rows: slice) -> Array:
        first, last = rows.start // 32, -(-rows.stop // 32)
        words = module.rows("weight_zero_point", slice(first * bits, last * bits))
        zeros = unpacked(words.T, bits, min(last * 32, count) - first * 32).T
        return zeros[rows.start - first * 32 : rows.stop - first * 32]

    return rows_of


def _is_uneven(module: Module, count: int, groups: int, bits: int) -> bool:
    """Tell whether a zero point that is stored is not the middle of the codes."""
    if module.header("weight_zero_point").dtype != "I32":  # signed, or floats of older versions
        return bool(module.raw.read(module.name("weight_zero_point")).any())
    zeros, middle = _zeros(module, count, groups, bits), 1 << (bits - 1)
    return any((zeros(rows) != middle).any() for rows in each_block(slice(0, count), groups))


def _check_order(module: Module, group: int) -> None:
    """Refuse columns that lie in another order than their groups."""
    if not module.has("weight_g_idx"):
        return
    order = module.raw.read(module.name("weight_g_idx")).reshape(-1)
    if order.max(initial=-1) >= 0 and not np.array_equal(order, np.arange(len(order)) // group):
        raise UnsupportedError(
            f"{module.name('weight_g_idx')} puts columns into groups in another order, which MLX has"
            " not; dequantize the model with compressed-tensors first"
        )


def _halves(module: Module) -> Found:
    """Read E2M1: mxfp4 with the scales of MLX, or nvfp4, whose tensor has a scale of its own."""
    packed, scales = module.header("weight_packed"), module.header("weight_scale")
    nvfp4 = scales.dtype == "F8_E4M3"
    scheme = Scheme(4, 16, "nvfp4") if nvfp4 else Scheme(4, 32, "mxfp4")
    groups = (*packed.shape[:-1], packed.shape[-1] * 2 // scheme.group_size)
    if not nvfp4 and scales.dtype not in ("U8", "F8_E8M0"):
        raise BadInputError(f"{module.name('weight_scale')} is {scales}, expected U8 or F8_E4M3")
    require_shape(module.raw.headers, module.name("weight_scale"), groups)
    if packed.shape[-1] * 2 % scheme.group_size:
        raise BadInputError(
            f"{module.name('weight_packed')} is {packed}, not in groups of {scheme}"
        )
    name, words = module.name("weight"), (*packed.shape[:-1], packed.shape[-1] // 4)
    sources = {
        name: same(module.raw, module.name("weight_packed"), Header("U32", words)),
        module.name("scales"): same(module.raw, module.name("weight_scale"), Header("U8", groups)),
    }
    factor = float(_global_scale(module)) if nvfp4 else 1.0
    return (sources, scheme) if factor == 1 else (_divided(module, sources, scheme, factor), None)


def _global_scale(module: Module) -> Any:
    header = module.header("weight_global_scale")
    value = module.raw.read(module.name("weight_global_scale")).reshape(-1)
    if header.dtype not in FLOATS or len(value) != 1 or not value.astype(np.float64)[0] > 0:
        raise BadInputError(
            f"{module.name('weight_global_scale')} is {value}, expected one number > 0"
        )
    return value.astype(np.float64)[0]


def _divided(
    module: Module, sources: dict[str, Source], scheme: Scheme, factor: float
) -> dict[str, Source]:
    """Return the weight dense: its values are divided by FACTOR, rounded to float32 once."""
    parts = Assembled(module.raw, sources)
    name = module.name("weight")
    count, groups = parts.headers[module.name("scales")].shape

    def rows_of(rows: slice) -> Iterator[Array]:
        for block in each_block(rows, groups * scheme.group_size):
            stored = {"weight": read_rows(parts, name, block)}
            stored["scales"] = read_rows(parts, module.name("scales"), block)
            yield (Blocks(stored, scheme).values() / factor).astype(np.float32)

    return {name: computed(Header("F32", (count, groups * scheme.group_size)), rows_of)}


def _eights(module: Module) -> Found:
    """Read E4M3: mxfp8 where the scales are powers of two for 32 columns, else dense."""
    header, scales = module.header("weight"), module.header("weight_scale")
    if scales.dtype in ("U8", "F8_E8M0"):
        groups = (*header.shape[:-1], header.shape[-1] // 32)
        require_shape(module.raw.headers, module.name("weight_scale"), groups)
        words = Header("U32", (*header.shape[:-1], header.shape[-1] // 4))
        return {
            module.name("weight"): same(module.raw, module.name("weight"), words),
            module.name("scales"): same(
                module.raw, module.name("weight_scale"), Header("U8", groups)
            ),
        }, Scheme(8, 32, "mxfp8")
    return {
        module.name("weight"): scaled(
            module.raw, module.name("weight"), module.name("weight_scale")
        )
    }, None


FORMAT: Final = Format(read, write)
