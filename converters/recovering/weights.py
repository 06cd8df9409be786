"""The weights of a model found again among the constants of an exported file, under PyTorch's names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ...errors import MismatchError
from ..captures.constants import UNREAD
from ..captures.described import UNIFORM
from ..captures.mlprogram.arithmetic import tensors_of
from ..checkpoints import Checkpoint, Header
from ..checkpoints.formats.ranges import chunks
from ..common.dtypes import CODE, FLOATS, dtype_of
from ..common.hints import counted
from ..values import Array
from .unfolding import Folded, unfolded, way_of

# What exporters append to the name of a weight.
ENDINGS: Final = re.compile(
    r"(_(to_fp16|cast_fp16|palettized|quantized|sparsified|promoted|dequantized)|\.T|_transposed?)+$"
)


class Held:
    """Arrays as a checkpoint; see :class:`~weighbridge.converters.checkpoints.base.Checkpoint`."""

    def __init__(self, path: Path, arrays: Mapping[str, Array]) -> None:
        self.path, self._arrays = path, arrays
        self.files: tuple[Path, ...] = (path,) if path.is_file() else ()
        self.ignored: tuple[Path, ...] = ()
        self.metadata: Mapping[str, str] = {}
        self.headers: Mapping[str, Header] = {
            name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._arrays[name].copy()

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME."""
        yield from chunks(self._arrays[name], start, stop)


@dataclass
class Recovered:
    """What was found, by PyTorch's names.

    Attributes:
        arrays: the tensors.
        ways: how each was found: ``proven`` (the hash of the source's bytes), ``rounded``, ``changed since
            the export``, ``computed back``, ``by their product``, ``by the graph``, ``by name`` or ``by shape``.
        sums, norms: see ``unfolding.Unfolded``.
        absent: tensors of the model that are not in the file.
        unneeded: whether it is known that the file's outputs do not need them.
        zeros: those of them that are zeros now.
        dense: tensors that the file keeps as codes which MLX has no parts for, and why.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    sums: list[tuple[str, str]] = field(default_factory=list)
    norms: list[tuple[str, str]] = field(default_factory=list)
    absent: tuple[str, ...] = ()
    unneeded: bool = True
    zeros: list[str] = field(default_factory=list)
    dense: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the counts in words, a line each."""
        counts = Counter(self.ways.values())
        found = ", ".join(f"{count} {way}" for way, count in counts.most_common())
        lines = [f"{counted(len(self.arrays), 'tensor')} found: {found}"]
        if self.sums:
            added = ", ".join(f"{one} + {other}" for one, other in self.sums)
            lines.append(
                f"of which the file has the sum alone, now in the first, zeros in the second, which"
                f" computes the same: {added}"
            )
        if self.norms:
            both = ", ".join(f"{one} with {other}" for one, other in self.norms)
            lines.append(
                f"of which the file has the product alone, now in the first, its norms in the second, which"
                f" computes the same, to the bit: {both}"
            )
        if self.absent:
            known = "whose outputs do not need them" if self.unneeded else "which does not say why"
            lines.append(f"not in the file, {known}: {', '.join(self.absent)}")
        if self.zeros:
            lines.append(f"of these, zeros now, since the class has them: {', '.join(self.zeros)}")
        for why, count in Counter(self.dense.values()).items():
            names = [name for name, it in self.dense.items() if it == why]
            lines.append(
                f"{counted(count, 'weight')} on codes that stay dense, {names[0]} first: {why}"
            )
        return lines

    def without(self, names: Collection[str], unneeded: Collection[str]) -> None:
        """Note that NAMES, which the model may lack, and UNNEEDED ones are not in the file, which has no record."""
        self.absent = (*self.absent, *sorted({*names, *unneeded}))
        self.unneeded = self.unneeded and not names

    def fill(self, wanted: Mapping[str, Header], heads: Collection[str]) -> None:
        """Let what is absent be zeros where the submodule that it stands in is there, and none of HEADS."""
        there = {name.rpartition(".")[0]: it for name, it in self.arrays.items()}
        for name in self.absent if self.unneeded else ():
            inside, dot, _ = name.rpartition(".")
            near = there.get(inside) if dot and name.partition(".")[0] not in heads else None
            if near is not None and wanted[name].dtype in FLOATS:
                self.arrays[name] = np.zeros(wanted[name].shape, near.dtype)
                self.zeros.append(name)

    def leave_out(self, heads: Iterable[str]) -> None:
        """Leave out the HEADS of which a tensor is absent: a bias may equal one that the file needs."""
        for head in heads:
            part = {name for name in self.absent if name.partition(".")[0] == head}
            if part:
                part |= {name for name in self.arrays if name.partition(".")[0] == head}
                self.absent = tuple(sorted({*self.absent, *part}))
                self.arrays = {name: it for name, it in self.arrays.items() if name not in part}
                self.ways = {name: it for name, it in self.ways.items() if name not in part}


def recover(  # noqa: PLR0913  # of one caller, by keyword
    constants: Checkpoint,
    manifest: Mapping[str, Any],
    *,
    wanted: Mapping[str, Header],
    where: str,
    known: Collection[str] = (),
    like: Checkpoint | None = None,
    tied: Mapping[str, str] = MappingProxyType({}),
) -> Recovered:
    """Return the tensors WANTED, found among CONSTANTS.

    Args:
        constants: of the file.
        manifest: what an export of ours wrote into it; without it constants are found by names and shapes.
        wanted: the model's tensors by PyTorch's names.
        where: what to call the file.
        known: tensors that the model has besides, and its checkpoints do not.
        like: weights by PyTorch's names that may be those of the export; see ``unfolding.Folded``.
        tied: other names of tensors WANTED, under which an exporter may have kept them.

    Raises:
        MismatchError: all that outputs need and is not there, has another shape, or is no tensor of the model.
    """
    found = Recovered()
    problems = _by_record(found, constants, manifest, wanted, like)
    if not manifest:
        _named(found, constants, wanted, tied)
        _shaped(found, constants, wanted)
    missing = [name for name in wanted if name not in found.arrays]
    if manifest:
        found.absent, found.unneeded = tuple(missing), UNREAD in manifest
        problems += [*_lost(missing, manifest), *_strange(manifest, {*wanted, *known})]
    else:
        problems += [f"{name}{list(wanted[name].shape)} is not found" for name in missing]
    if problems or not found.arrays:
        raise MismatchError(
            f"{where} does not hold the weights of this model", problems or ["none of them"]
        )
    return found


def count(constants: Checkpoint, manifest: Mapping[str, Any], wanted: Mapping[str, Header]) -> int:
    """Return how many tensors WANTED have a name that leads to one of CONSTANTS; see ``recover``."""
    if manifest:
        entries = dict(manifest.get("weights") or {}).values()
        return len(
            wanted.keys() & {key for it in entries for key in (it["key"], *it.get("also", ()))}
        )
    found = Recovered()
    _named(found, constants, wanted)
    return len(found.arrays)


def _recorded(
    found: Recovered,
    constants: Checkpoint,
    manifest: Mapping[str, Any],
    wanted: Mapping[str, Header],
) -> Iterator[str]:
    """Fill FOUND with what MANIFEST names; yield what is not as it says."""
    for name, entry in dict(manifest.get("weights") or {}).items():
        if name not in constants.headers:
            yield f"{name} is named by the record of the export, and not there"
            continue
        array = constants.read(name)
        array = np.swapaxes(array, -1, -2) if entry.get("transposed") else array
        for key in (entry["key"], *entry.get("also", ())):
            yield from _put(found, key, array, way_of(array, entry), wanted)


def _by_record(
    found: Recovered,
    constants: Checkpoint,
    manifest: Mapping[str, Any],
    wanted: Mapping[str, Header],
    like: Checkpoint | None,
) -> list[str]:
    """Fill FOUND with what MANIFEST says of constants; return what is not as it says."""
    problems = [*_recorded(found, constants, manifest, wanted)]
    back = unfolded(Folded(constants, manifest, wanted, found.arrays, like))
    found.arrays = {**back.arrays, **found.arrays}
    found.ways = {**back.ways, **found.ways}
    found.sums, found.norms = back.sums, back.norms
    _uniform(found, manifest, wanted)
    return problems + back.problems


def _uniform(found: Recovered, manifest: Mapping[str, Any], wanted: Mapping[str, Header]) -> None:
    """Add to FOUND the tensors that MANIFEST says to be one number everywhere, and that no constant is."""
    for name, entry in dict(manifest.get(UNIFORM) or {}).items():
        if name in wanted and name not in found.arrays:
            dtype = dtype_of(str(entry["dtype"]))
            found.arrays[name] = np.full(wanted[name].shape, entry["number"], dtype)
            found.ways[name] = way_of(found.arrays[name], entry)


def _lost(missing: Iterable[str], manifest: Mapping[str, Any]) -> Iterator[str]:
    """Say which of the MISSING tensors the outputs need, by all that MANIFEST says."""
    rules = dict(manifest.get("made") or {})
    used = {key: name for name, it in rules.items() for key in tensors_of(dict(it or {}))}
    unread = manifest.get(UNREAD)
    for name in missing:
        if name in used:
            yield (
                f"{name} went into {used[name]}, from which it cannot be computed back: a file made with"
                " sizes that vary (coremltools.RangeDim) keeps tables whole"
            )
        elif unread is not None and name not in unread:
            yield f"{name} is not in the file, whose outputs need it"


def _strange(manifest: Mapping[str, Any], known: set[str]) -> Iterator[str]:
    """Say which tensors MANIFEST names that are none of those KNOWN, whatever else they may be called."""
    for entry in dict(manifest.get("weights") or {}).values():
        if known.isdisjoint((entry["key"], *entry.get("also", ()))):
            yield f"{entry['key']} is in the file, and no tensor of the model"


def _put(
    found: Recovered, key: str, array: Array, way: str, wanted: Mapping[str, Header]
) -> Iterator[str]:
    if key not in wanted or key in found.arrays:
        return
    shape = wanted[key].shape
    if array.size != int(np.prod(shape)):
        yield f"{key} has the shape {list(array.shape)} in the file, and {list(shape)} in the model"
        return
    found.arrays[key] = np.ascontiguousarray(array).reshape(shape)
    found.ways[key] = way


def _named(
    found: Recovered,
    constants: Checkpoint,
    wanted: Mapping[str, Header],
    tied: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Find tensors by their names, whatever stands in place of dots and behind them."""
    known = {_plain(other): name for other, name in tied.items() if name in wanted}
    known |= {_plain(name): name for name in wanted}
    for name, header in constants.headers.items():
        key = known.get(_plain(name)) or _ending(_plain(name), known)
        if key is None or key in found.arrays:
            continue
        if array := _turned(constants, name, header, wanted[key]):
            found.arrays[key], found.ways[key] = array[0], "by name"


def _shaped(found: Recovered, constants: Checkpoint, wanted: Mapping[str, Header]) -> None:
    """Find what is left by its shape, where one tensor and one constant alone have it."""
    left = {name: it for name, it in wanted.items() if name not in found.arrays}
    shapes = Counter(sorted_sizes(it) for it in left.values())
    rest = {name: it for name, it in constants.headers.items() if len(it.shape) > 1}
    there = Counter(sorted_sizes(it) for it in rest.values())
    for key, header in left.items():
        shape = sorted_sizes(header)
        if len(shape) > 1 and shapes[shape] == there[shape] == 1:
            name = next(name for name, it in rest.items() if sorted_sizes(it) == shape)
            if array := _turned(constants, name, rest[name], header):
                found.arrays[key], found.ways[key] = array[0], "by shape"


def sorted_sizes(header: Header) -> tuple[int, ...]:
    """Return the sizes of a tensor, in order; axes of size 1 an exporter may add or drop.

    >>> sorted_sizes(Header("F32", (1, 9, 4)))
    (4, 9)
    """
    return tuple(sorted(size for size in header.shape if size != 1))


def _turned(
    constants: Checkpoint, name: str, header: Header, wanted: Header
) -> tuple[Array] | None:
    """Return the constant NAME in the shape WANTED, its last axes swapped if that makes it so."""
    array = constants.read(name)
    if [n for n in header.shape if n != 1] == [n for n in wanted.shape if n != 1]:
        return (array.reshape(wanted.shape),)
    if len(header.shape) >= 2 and np.swapaxes(array, -1, -2).shape == wanted.shape:
        return (np.ascontiguousarray(np.swapaxes(array, -1, -2)),)
    return None


def _plain(name: str) -> str:
    """Return NAME as all exporters would write it.

    >>> _plain("encoder.layer.0.weight") == _plain("encoder_layer_0_weight_to_fp16")
    True
    """
    return re.sub(r"\W+", "_", ENDINGS.sub("", name)).strip("_").lower()


def _ending(name: str, known: Mapping[str, str]) -> str | None:
    """Return the longest of the KNOWN names that NAME ends with, behind what a wrapper put before it."""
    fits = [plain for plain in known if name.endswith(f"_{plain}")]
    return known[max(fits, key=len)] if fits else None
